"""Random weights that let a fault be seen: variance-preserving, none at zero, normalisation statistics calibrated.

Stock initialisation is made for training. It hides most of a model from whoever compares outputs: residual gammas of 0,
layer scales of 1e-6, gates and biases at zero, logits that sink to 1e-9, batch statistics that normalise nothing.

What the stock initialisation drew stays as drawn and is rescaled, which costs far less than drawing again; only what it
left constant is drawn. What it set to values with a meaning of their own (state matrices, decays, ladders of
frequencies, codebooks, temperatures) is neither centred on zero nor constant, or is named in `CONSTRAINED`, and stays.
"""

from __future__ import annotations

import copy
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from model_zoo.spec import BuiltModel

CONSTRAINED = re.compile(
    r"A_log|dt_|(^|[._])time_|decay|inv_freq|freqs|rotary|codebook|quantiz|logit_scale|logit_bias|temperature"
    r"|parametrizations|\btau\b|sampling_offsets|class_prior|log_scale|Attention\.q\.weight$"
)
"""Names of parameters whose values have a meaning of their own. The last is T5's, whose queries hold the scale that
other attention applies to its logits."""

SHIFT = re.compile(r"bias|beta|shift|token|embed|position|query|latent|prompt|mean")
"""Names of parameters that are added to a signal; any other vector multiplies one."""

TABLE = 0.2
"""Least standard deviation of parameters that are no matrices: tokens, positions, tables of relative biases."""
BIAS = 0.1
"""Standard deviation of a bias that was constant at zero."""
SAMPLE = 4096
"""Elements that a parameter's standard deviation is taken from: one thread sums so few, so that it is the same bits in
every process."""
PRIOR_SAMPLES = 8
"""Samples per channel that the statistics of all channels together count for, where a channel has few of its own."""
SHARED = 1_000_000
"""Elements from which on a parameter is taken to be left alone by forward (a small model's own are put back)."""
SANE = (1e-6, 1e6)
"""Magnitudes (RMS) that an output may have."""


def observable(built: BuiltModel, seed: int) -> bool:
    """Redraws random weights in place so that a fault anywhere shows in the output; the same for a seed in any process.

    Tied parameters stay tied, and buffers stay, but for the statistics of normalisation layers, which are calibrated by
    one forward on the model's inputs. False where the output is then NaN, infinite or constant, or forward raises: the
    weights are of no use then, and whoever built the model builds it again as it was.

    >>> from model_zoo.sources import build
    >>> observable(build("timm:test_resnet", weights="stock"), seed=0)
    True
    """
    with torch.no_grad(), _one_thread():
        try:
            for name, role in sorted(_roles(built.module).items()):
                _redraw(name, role, seed)
            return _is_sane(_calibrated(built))
        except Exception:  # whatever the model's own code raises
            return False


@dataclass(frozen=True)
class _Role:
    """A parameter and the module that uses it."""

    owner: nn.Module
    key: str
    parameter: nn.Parameter


def _roles(module: nn.Module) -> dict[str, _Role]:
    """Every parameter once, by its first name; a tied one belongs to the embedding that uses it, if there is one."""
    found: dict[int, tuple[str, _Role]] = {}
    for prefix, owner in module.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is None or not parameter.is_floating_point() or not parameter.numel():
                continue
            if id(parameter) not in found:
                found[id(parameter)] = (f"{prefix}.{key}".lstrip("."), _Role(owner, key, parameter))
            elif isinstance(owner, nn.Embedding):
                found[id(parameter)] = (found[id(parameter)][0], _Role(owner, key, parameter))
    return dict(found.values())


def _redraw(name: str, role: _Role, seed: int) -> None:
    parameter = role.parameter
    if CONSTRAINED.search(name) or parameter.is_meta:
        return
    sample = parameter.detach().reshape(-1)
    sample = sample[:: -(-sample.numel() // SAMPLE) | 1].float()  # odd, so as not to fall in step with rows
    if not bool(torch.isfinite(sample).all()):
        return
    low, high = float(sample.min()), float(sample.max())
    if low == high:
        generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        _draw_constant(name, role, low, generator)
        return
    spread, mean = float(sample.std()), float(sample.mean())
    if abs(mean) > spread / 2:  # values with a meaning of their own
        return
    wanted = _matrix_std(name, role)
    if wanted is None:
        wanted = max(spread, TABLE if parameter.squeeze().dim() > 1 else BIAS)
    if parameter.squeeze().dim() > 1 or spread < wanted / 10:
        parameter.mul_(wanted / spread)


def _draw_constant(name: str, role: _Role, value: float, generator: torch.Generator) -> None:
    """Draws a parameter that the stock initialisation left at one value everywhere."""
    parameter = role.parameter

    def uniform(low: float, high: float) -> Tensor:
        return torch.rand(parameter.shape, generator=generator).mul_(high - low).add_(low)

    def normal(spread: float) -> Tensor:
        return torch.randn(parameter.shape, generator=generator).mul_(spread)

    wanted = _matrix_std(name, role)
    if wanted is not None and value == 0:
        parameter.copy_(normal(wanted))
    elif value == 0 and (SHIFT.search(_last(name)) or parameter.squeeze().dim() > 1):
        parameter.copy_(normal(TABLE if parameter.squeeze().dim() > 1 else BIAS))
    elif abs(value) <= 0.2:  # a gate, a layer scale, a residual gamma
        parameter.copy_(uniform(0.5, 1.0))
    elif abs(value) <= 2 and not SHIFT.search(_last(name)):
        parameter.copy_(uniform(0.75, 1.25).mul_(value))


def _matrix_std(name: str, role: _Role) -> float | None:
    """Standard deviation that keeps the variance of what a weight is applied to; None for what is no such weight.

    He et al., arXiv 1502.01852, with gain 1: normalisation makes up for the half that a ReLU takes.
    """
    owner, weight = role.owner, role.parameter
    if isinstance(owner, nn.Embedding):
        return float(weight.shape[-1] ** -0.5)
    if role.key == "weight" and isinstance(owner, nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d):
        strides = math.prod(owner.stride)
        return math.sqrt(strides / (weight[:, 0].numel() / owner.groups))
    if role.key == "weight" and type(owner).__name__ == "Conv1D":  # of GPT-2: a Linear, transposed
        return float(weight.shape[0] ** -0.5)
    if role.key == "weight" and isinstance(owner, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return float(weight[0].numel() ** -0.5)
    if weight.dim() < 2 or min(weight.shape[-2:]) < 4 or SHIFT.search(_last(name)):
        return None
    if weight.dim() == 2 or (weight.dim() == 3 and weight.shape[0] > 1):  # experts, projections kept as parameters
        return float((weight.shape[-1] * weight.shape[-2]) ** -0.25)
    return None


def _last(name: str) -> str:
    """What a parameter is called in its module, or its list in its module: `weight` of `embeddings.norm.weight`."""
    return re.sub(r"(\.\d+)+$", "", name).rpartition(".")[2]


def _calibrated(built: BuiltModel) -> Any:
    """The output of one forward in which every normalisation layer takes the statistics of what reaches it."""
    args, kwargs = copy.deepcopy((built.args, built.kwargs))
    calibration = _Calibration()
    with _undone(built.module), ExitStack() as stack:
        for layer in built.module.modules():
            if isinstance(getattr(layer, "running_mean", None), Tensor):
                stack.callback(layer.register_forward_pre_hook(calibration).remove)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(0)
        output = built.module(*args, **kwargs)
    for layer in calibration.found:
        calibration.apply(layer)
    return output


class _Calibration:
    """A hook that gives a layer the statistics of the first input that it sees."""

    def __init__(self) -> None:
        self.found: dict[Any, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: Any, inputs: tuple[Any, ...]) -> None:
        x = inputs[0] if inputs else None
        channels = layer.running_mean.numel()
        if layer in self.found or not isinstance(x, Tensor) or x.dim() < 2 or x.shape[1] != channels:
            return
        table = x.detach().float().transpose(0, 1).reshape(channels, -1)
        own, prior = table.shape[1], PRIOR_SAMPLES
        mean = table.mean(1).mul_(own).add_(table.mean(), alpha=prior).div_(own + prior)
        square = (table - mean[:, None]).square_()
        variance = square.mean(1).mul_(own).add_(square.mean(), alpha=prior).div_(own + prior)
        if bool(torch.isfinite(variance).all()):
            self.found[layer] = mean, variance.clamp_(min=1e-12)
            self.apply(layer)

    def apply(self, layer: Any) -> None:
        """Writes what was found for a layer into it."""
        mean, variance = self.found[layer]
        layer.running_mean.copy_(mean)
        layer.running_var.copy_(variance)


@contextmanager
def _undone(module: nn.Module) -> Iterator[None]:
    """Undoes what a forward leaves on the modules: attributes, caches, buffers and parameters that it wrote to.

    A copy of the module would do as well, and takes longer than the forward of a small one.
    """
    tensors = [*module.buffers(), *(p for p in module.parameters() if p.numel() < SHARED)]
    values = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tensors]
    attributes = [(vars(owner), dict(vars(owner))) for owner in module.modules()]
    containers = [
        (value, copy.copy(value))
        for _, before in attributes
        for value in before.values()
        if type(value) in (dict, list, set) and value is not before.get("_modules")
    ]
    try:
        yield
    finally:
        for now, before in attributes:
            now.clear()
            now.update(before)
        for container, content in containers:
            container.clear()
            container.extend(content) if isinstance(container, list) else container.update(content)
        for tensor, version, value in values:
            if tensor._version != version:
                tensor.copy_(value)


def _is_sane(output: Any) -> bool:
    """Whether floating outputs are finite, of ordinary magnitude, and some of them vary."""
    floats = [t.detach().double() for t in _tensors(output) if t.is_floating_point() and t.numel() > 1]
    varies = not floats
    for values in floats:
        if bool(torch.isnan(values).any() or torch.isposinf(values).any()):
            return False
        finite = values[torch.isfinite(values)]
        if finite.numel() > 1 and float(finite.std()) > 0:
            magnitude = float(finite.square().mean().sqrt())
            varies |= SANE[0] < magnitude
            if magnitude > SANE[1] and bool((finite.abs() < torch.finfo(torch.float32).max / 4).all()):
                return False
    return varies


def _tensors(output: Any) -> Iterator[Tensor]:
    for leaf in pytree.tree_leaves(output):
        if isinstance(leaf, Tensor) and leaf.layout is torch.strided and not leaf.is_quantized:
            yield leaf


@contextmanager
def _one_thread() -> Iterator[None]:
    """Sums are split among threads, and the statistics must be the same bits whatever the worker has."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
