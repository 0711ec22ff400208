"""Greedy decoding with a cache, its tokens given beforehand: the prompt at once, then one token at a time.

The tokens are the reference's own greedy choice (the best that it has not said yet), made once when the workload is
built, so that one token that falls otherwise does not put all later steps on another text. What a run would have
chosen, its logits tell.

Written for the methods by which `generate` of transformers 5.24 prepares a step; they are private in part, and called
in this file only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from harness.backends.base import is_out_of_memory, one_line
from harness.backends.copies import copied_inputs, private_copy
from harness.backends.workloads.base import Workload, WorkloadUnfit
from model_zoo.spec import BuiltModel

STEPS = 8
"""Tokens that are decoded after the prompt."""

TIE = 1e-5
"""Logits nearer to the greatest than this share of their spread count as equal to it when the tokens are chosen; the
first of them is taken. Rounding may differ between processes, the tokens may not."""


class Decoding(Workload):
    """Forward gives `{"step": [logits, ...]}`: `(batch, vocabulary)` after the prompt and after each given token."""

    dynamic = None

    def forward(self, given_tokens: Tensor | None = None, **prompt: Any) -> dict[str, Any]:
        """`given_tokens` is `(batch, steps)`; `prompt` are the model's own arguments."""
        assert given_tokens is not None
        return {"step": list(self._logits(given_tokens, prompt))}

    def _logits(self, tokens: Tensor, prompt: dict[str, Any]) -> Iterator[Tensor]:
        model: Any = self.model
        encoder_decoder = bool(model.config.is_encoder_decoder)
        name = "decoder_input_ids" if encoder_decoder else "input_ids"
        ids, state = prompt[name], {n: v for n, v in prompt.items() if n != name}
        state["use_cache"] = True
        for step in range(tokens.shape[1] + 1):
            inputs = {name: ids, **state}
            if step:
                inputs = model.prepare_inputs_for_generation(
                    ids, next_sequence_length=1, is_first_iteration=False, **state
                )
            outputs = self.callee(**inputs, return_dict=True)
            yield outputs["logits"][:, -1]
            state = model._update_model_kwargs_for_generation(outputs, state, is_encoder_decoder=encoder_decoder)
            if encoder_decoder and not step:
                state.pop(model.main_input_name, None)
                state["encoder_outputs"] = _encoder_outputs(outputs["encoder_last_hidden_state"])
            if step < tokens.shape[1]:
                ids = torch.cat([ids, tokens[:, step : step + 1]], dim=1)


def _encoder_outputs(last_hidden_state: Tensor) -> Any:
    from transformers.modeling_outputs import BaseModelOutput

    return BaseModelOutput(last_hidden_state=last_hidden_state)


def decoding(built: BuiltModel) -> BuiltModel:
    """The model with greedy decoding for its module; `WorkloadUnfit` where it does not generate with a cache."""
    can_generate = getattr(built.module, "can_generate", None)
    if can_generate is None or not can_generate():
        raise WorkloadUnfit(f"{type(built.module).__name__} does not generate")
    own = private_copy(built)
    try:
        return _decoded(own)
    except WorkloadUnfit:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise WorkloadUnfit(f"no decoding with a cache: {one_line(error)}") from error


def _decoded(own: BuiltModel) -> BuiltModel:
    module = Decoding(own.module)
    name = "decoder_input_ids" if getattr(own.module.config, "is_encoder_decoder", False) else "input_ids"
    ids = own.kwargs.get(name)
    if not isinstance(ids, Tensor) or ids.dim() != 2:
        raise WorkloadUnfit(f"no decoding: the model is given no {name}")
    special = _special_tokens(own.module)
    tokens = ids[:, :0]
    lengths: list[int] = []
    hook = own.module.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(_length(name, kwargs)), with_kwargs=True
    )
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(STEPS):
            _, kwargs = copied_inputs(own)
            logits = module(given_tokens=tokens, **kwargs)["step"][-1]
            tokens = torch.cat([tokens, _greedy(logits, special, tokens)], dim=1)
    hook.remove()
    if any(length != 1 for length in lengths[-STEPS + 1 :]):
        raise WorkloadUnfit("no decoding: the model keeps no cache, every step reads the whole sequence")
    return dataclasses.replace(own, module=module, kwargs={**own.kwargs, "given_tokens": tokens})


def _length(name: str, kwargs: dict[str, Any]) -> int:
    ids = kwargs.get(name)
    return ids.shape[1] if isinstance(ids, Tensor) else 0


def _greedy(logits: Tensor, special: list[int], given: Tensor) -> Tensor:
    """The greedy token of every row, `(batch, 1)`; none that stands for an image, a sound or the end, and none twice.

    Random weights say one word over and over, and a cache that gives back the wrong step would not show.
    """
    logits = logits.float()
    banned = torch.tensor([t for t in special if t < logits.shape[-1]], dtype=torch.long)
    ordinary = logits.index_fill(-1, banned, -torch.inf).scatter(-1, given, -torch.inf)
    greatest = ordinary.amax(-1, keepdim=True)
    spread = greatest - ordinary.masked_fill(ordinary.isinf(), torch.inf).amin(-1, keepdim=True)
    return (ordinary >= greatest - TIE * spread).int().argmax(-1, keepdim=True)


def _special_tokens(module: nn.Module) -> list[int]:
    found: set[int] = set()
    configs = [module.config, *(v for v in vars(module.config).values() if hasattr(v, "to_dict"))]
    for config in configs:
        for name, value in vars(config).items():
            if name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= 0:
                found.add(value)
    return sorted(found)
