"""One training step: the loss, the gradient of every parameter, one step of SGD, the running statistics.

The optimizer is SGD and not Adam, whose first step is the sign of the gradient: it would hide a gradient that is three
times too large, and would turn the rounding noise of a gradient that is analytically zero into a full step.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim.sgd import sgd
from torch.utils import _pytree as pytree

from harness.backends.base import is_out_of_memory, one_line
from harness.backends.copies import copied_inputs, private_copy
from harness.backends.workloads.base import Workload, WorkloadUnfit
from model_zoo.spec import BuiltModel

LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 0.01
"""Each moves a parameter by far more than its rounding; Nesterov's rule makes the momentum show in the first step."""

MODERATE = 1e4
"""Greatest output that takes part in the loss: a masked logit is -inf or the least number of its dtype."""


@dataclasses.dataclass(frozen=True)
class Term:
    """What one floating output adds to the loss: sum(weight * x**2) / scale."""

    leaf: int
    """Which tensor of the output tree."""
    weight: Tensor
    """In [0.5, 1.5], so that an output of constant norm has a gradient too; 0 where the output is not moderate."""
    scale: float
    """Such that the gradient of the output has a norm of about 1, which half precision can hold."""

    def __call__(self, outputs: Any) -> Tensor:
        """The term, a number."""
        x = _tensors(outputs)[self.leaf]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        return (self.weight * x.where(self.weight > 0, 0.0).square()).sum() / self.scale


class OwnLoss:
    """The loss that the model itself computes from its labels."""

    def __call__(self, outputs: Any) -> Tensor:
        """The loss, a number."""
        loss: Tensor = outputs["loss"]
        return loss


class Training(Workload):
    """Forward does one training step and gives `{"loss": ..., "grad": {...}, "updated": {...}}`, by parameter name.

    `updated` also has the buffers that the forward writes to, such as running statistics. A parameter that the loss
    does not depend on has neither gradient nor update.
    """

    def __init__(self, model: nn.Module, losses: list[Any], written: tuple[str, ...]) -> None:
        super().__init__(model)
        self.losses, self.written = losses, written

    def forward(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """One step from the model's present state, which stays as it is."""
        parameters = _trainable(self.model)
        buffers = dict(self.model.named_buffers())
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with torch.enable_grad(), _requiring_grad(parameters.values()):
            outputs = _with_buffers(self.callee, fresh, args, kwargs)
            loss = torch.stack([term(outputs) for term in self.losses]).sum()
            given = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        gradients = {name: g.detach() for name, g in zip(parameters, given, strict=True) if g is not None}
        with torch.no_grad():
            updated = {name: parameters[name].detach().clone() for name in gradients}
            sgd(
                list(updated.values()),
                [g.clone() for g in gradients.values()],
                [None for _ in gradients],
                foreach=False,
                weight_decay=WEIGHT_DECAY,
                momentum=MOMENTUM,
                lr=LEARNING_RATE,
                dampening=0.0,
                nesterov=True,
                maximize=False,
            )
        state = {name: fresh[name].detach() for name in self.written}
        return {"loss": loss.detach(), "grad": gradients, "updated": {**updated, **state}}


def training(built: BuiltModel) -> BuiltModel:
    """The model with a training step for its module; `WorkloadUnfit` where there is nothing to learn or to lose."""
    own = private_copy(built)
    if not _trainable(own.module):
        raise WorkloadUnfit("no floating parameter to train")
    first: Exception | None = None
    for mode in (_all_in_training, _norms_in_training, _in_evaluation):
        mode(own.module)
        try:
            if not _draws(own):
                return _step(own)
        except WorkloadUnfit:
            raise
        except Exception as error:  # a batch norm refuses one value per channel
            if is_out_of_memory(error):
                raise
            first = first or error
    raise WorkloadUnfit(f"no training step: {one_line(first) if first else 'the model draws in every mode'}")


def _step(own: BuiltModel) -> BuiltModel:
    """The step, with the model's own loss where it has one for labels that we can give, else with ours."""
    for labels in _labels(own):
        candidate = dataclasses.replace(own, kwargs={**own.kwargs, "labels": labels})
        try:
            outputs, _ = _tried(candidate)
            loss = outputs["loss"]
            if isinstance(loss, Tensor) and loss.requires_grad and loss.dim() == 0 and bool(loss.isfinite()):
                return _trained(candidate, [OwnLoss()])
        except Exception as error:  # not labels for this head
            if is_out_of_memory(error):
                raise
    outputs, _ = _tried(own)
    terms = _terms(outputs)
    if not terms:
        raise WorkloadUnfit("no floating output depends on a parameter, so there is no loss")
    return _trained(own, terms)


def _trained(own: BuiltModel, losses: list[Any]) -> BuiltModel:
    _, changed = _tried(own)
    return dataclasses.replace(own, module=Training(own.module, losses, changed))


def _tried(own: BuiltModel) -> tuple[Any, tuple[str, ...]]:
    """The outputs of one forward with gradients, and the buffers that it wrote to. The model stays as it is."""
    before = dict(own.module.named_buffers())
    fresh = {name: buffer.clone() for name, buffer in before.items()}
    args, kwargs = copied_inputs(own)
    with (
        torch.enable_grad(),
        torch.random.fork_rng(devices=[]),
        _requiring_grad(_trainable(own.module).values()),
    ):
        torch.manual_seed(0)
        outputs = _with_buffers(own.module, fresh, args, kwargs)
    return outputs, tuple(name for name, buffer in before.items() if not _same(buffer, fresh[name]))


def _terms(outputs: Any) -> list[Any]:
    generator = torch.Generator().manual_seed(0)
    found: list[Any] = []
    for index, x in enumerate(_tensors(outputs)):
        if x.requires_grad and x.is_floating_point() and x.numel():
            x = x.detach().double()
            moderate = x.isfinite() & (x.abs() < MODERATE)
            norm = float(torch.linalg.vector_norm(x[moderate]))
            if norm:
                weight = 0.5 + torch.rand(x.shape, generator=generator)
                found.append(Term(index, weight * moderate, 2 * norm))
    return found


def _labels(own: BuiltModel) -> Iterator[Tensor]:
    """Labels that the model's forward might take: the tokens themselves, or a class for every sample."""
    import inspect

    if "labels" not in inspect.signature(own.module.forward).parameters or "labels" in own.kwargs:
        return
    for name in ("decoder_input_ids", "input_ids"):
        if isinstance(own.kwargs.get(name), Tensor):
            yield own.kwargs[name].clone()
            break
    batch = next((x.shape[0] for x in _tensors((own.args, own.kwargs)) if x.dim()), 1)
    yield torch.arange(batch) % 2


def _with_buffers(callee: nn.Module, buffers: Mapping[str, Tensor], args: Any, kwargs: Any) -> Any:
    """Calls the model, or what it was compiled to, on these buffers in place of its own."""
    prefix = "_orig_mod." if hasattr(callee, "_orig_mod") else ""
    return functional_call(callee, {f"{prefix}{n}": b for n, b in buffers.items()}, args, kwargs)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in pytree.tree_leaves(tree) if isinstance(x, Tensor)]


def _trainable(module: nn.Module) -> dict[str, Tensor]:
    return {n: p for n, p in module.named_parameters() if p.is_floating_point() or p.is_complex()}


@contextmanager
def _requiring_grad(parameters: Any) -> Iterator[None]:
    parameters = list(parameters)
    before = [p.requires_grad for p in parameters]
    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, flag in zip(parameters, before, strict=True):
            parameter.requires_grad_(flag)


def _all_in_training(module: nn.Module) -> None:
    """Training mode with every dropout probability 0: dropout and stochastic depth draw what no two backends draw."""
    module.train()
    seen: set[int] = set()
    for owner in module.modules():
        _without_dropout(vars(owner), seen)


def _without_dropout(values: dict[str, Any], seen: set[int]) -> None:
    for name, value in values.items():
        of_dropout = "drop" in name or (name == "p" and "inplace" in values)  # the latter is nn.Dropout's
        if of_dropout and isinstance(value, float) and 0 < value <= 1:
            values[name] = 0.0
        elif name.endswith("config") and hasattr(value, "__dict__") and id(value) not in seen:
            seen.add(id(value))
            _without_dropout(vars(value), seen)


def _norms_in_training(module: nn.Module) -> None:
    module.eval()
    for owner in module.modules():
        if isinstance(owner, nn.modules.batchnorm._BatchNorm):
            owner.train()


def _in_evaluation(module: nn.Module) -> None:
    module.eval()


def _draws(own: BuiltModel) -> bool:
    """Whether two forwards from other states of the generator differ."""
    runs = []
    for seed in (1, 2):
        fresh = {name: buffer.clone() for name, buffer in own.module.named_buffers()}
        args, kwargs = copied_inputs(own)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            runs.append(_tensors(_with_buffers(own.module, fresh, args, kwargs)))
    return not all(itertools.starmap(_same, zip(*runs, strict=False)))


def _same(one: Tensor, other: Tensor) -> bool:
    if one.shape != other.shape:
        return False
    if one.is_floating_point() or one.is_complex():
        return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)
    return torch.equal(one, other)
