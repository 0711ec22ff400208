"""Facts about the transformers source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest
import torch
from torch.utils import _pytree as pytree

from model_zoo.sources import source
from model_zoo.sources.transformers import TransformersSource
from model_zoo.spec import BuiltModel, ModelSpec, UnknownModel

SRC = TransformersSource()


def build(name: str, seed: int = 0) -> BuiltModel:
    return SRC.build(ModelSpec("transformers", name), seed)


def floats(model: BuiltModel) -> list[torch.Tensor]:
    with torch.no_grad():
        leaves = pytree.tree_leaves(model.module(*model.args, **model.kwargs))
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def digest(model: BuiltModel) -> str:
    """A hash of the parameters, buffers and inputs, bit for bit."""
    sha = hashlib.sha256()
    state = [*model.module.state_dict().values(), *pytree.tree_leaves((model.args, model.kwargs))]
    for tensor in state:
        sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()


def test_source_is_installed() -> None:
    assert isinstance(source("transformers"), TransformersSource)


def test_names_hold_base_models_and_heads() -> None:
    assert {"bert", "llama/LlamaForCausalLM", "whisper/WhisperForConditionalGeneration"} <= set(SRC.names())


def test_listing_imports_no_model() -> None:
    code = (
        "import sys; from model_zoo.sources import source; source('transformers').names();"
        "sys.exit(any('.modeling_' in m and '.models.' in m and '.auto.' not in m for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_class_that_no_mapping_lists_is_known() -> None:
    assert SRC.has_impl("clip/CLIPVisionModelWithProjection")
    assert not SRC.has_impl("clip/CLIPVisionModelWithoutProjection")


def test_unknown_type_has_near_matches() -> None:
    with pytest.raises(UnknownModel, match="transformers:roberta"):
        SRC.resolve("robertta")


def test_unknown_head_has_near_matches() -> None:
    with pytest.raises(UnknownModel, match="transformers:bert/BertForMaskedLM"):
        build("bert/BertForMaskedLMs")


MODALITIES = [
    ("bert", "text"),
    ("llama/LlamaForCausalLM", "text"),
    ("t5/T5ForConditionalGeneration", "text-to-text"),
    ("vit/ViTForImageClassification", "image"),
    ("whisper", "audio"),
    ("wav2vec2", "audio"),
    ("clip", "multimodal"),
    ("llava", "multimodal"),
    ("qwen2_vl", "multimodal"),
    ("videomae", "video"),
    ("patchtst", "time-series"),
    ("mamba", "text"),
]


@pytest.mark.parametrize(("name", "modality"), MODALITIES)
def test_model_is_small_runs_and_has_its_modality(name: str, modality: str) -> None:
    model = build(name)
    outputs = floats(model)
    assert outputs
    assert all(torch.isfinite(x).all() for x in outputs)
    assert (model.modality, model.reduced) == (modality, True)
    assert model.family == name.partition("/")[0]
    assert model.parameters < 5_000_000
    assert not model.module.training


@pytest.mark.parametrize("name", ["bert", "mixtral", "clip"])
def test_model_exports(name: str) -> None:
    model = build(name)
    with torch.no_grad():
        torch.export.export(model.module, model.args, model.kwargs, strict=False).run_decompositions({})


def test_image_tokens_match_image_features() -> None:
    model = build("llava")
    token = model.module.config.image_token_id
    assert (model.kwargs["input_ids"] == token).sum() == 2 * 16  # two images of 4 x 4 patches


def test_same_seed_gives_the_same_in_another_process() -> None:
    code = "from tests.model_zoo.test_transformers import build, digest; print(digest(build('clip', 3)))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert other.stdout.strip() == digest(build("clip", 3))
    assert other.stdout.strip() != digest(build("clip", 4))
