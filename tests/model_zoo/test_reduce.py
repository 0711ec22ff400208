"""Facts about reduced configs."""

from __future__ import annotations

import copy

import pytest
from transformers import (
    BertConfig,
    CLIPConfig,
    Gemma2Config,
    LlamaConfig,
    LlavaConfig,
    MixtralConfig,
    Qwen2VLConfig,
    SwinConfig,
    T5Config,
    WhisperConfig,
)

from model_zoo.reduce import reduce_config


def test_config_given_is_not_changed() -> None:
    stock = CLIPConfig()
    before = copy.deepcopy(stock.to_dict())
    reduce_config(stock)
    assert stock.to_dict() == before


@pytest.mark.parametrize(
    "config", [BertConfig(), LlamaConfig(), T5Config(), WhisperConfig()], ids=lambda c: c.model_type
)
def test_layers_and_vocabulary_shrink(config: object) -> None:
    reduced = reduce_config(config)
    assert reduced.num_hidden_layers == 2
    assert reduced.vocab_size <= 512


def test_heads_divide_width() -> None:
    reduced = reduce_config(BertConfig(hidden_size=1280, num_attention_heads=20))
    assert reduced.num_attention_heads > 1
    assert reduced.hidden_size % reduced.num_attention_heads == 0


def test_grouped_queries_stay_grouped() -> None:
    reduced = reduce_config(LlamaConfig(num_attention_heads=32, num_key_value_heads=8))
    assert 1 <= reduced.num_key_value_heads < reduced.num_attention_heads
    assert reduced.num_attention_heads % reduced.num_key_value_heads == 0


def test_ungrouped_queries_stay_ungrouped() -> None:
    reduced = reduce_config(LlamaConfig(num_attention_heads=32, num_key_value_heads=32))
    assert reduced.num_key_value_heads == reduced.num_attention_heads


def test_every_kind_of_layer_stays() -> None:
    stock = Gemma2Config()
    reduced = reduce_config(stock)
    assert set(reduced.layer_types) == set(stock.layer_types)
    assert len(reduced.layer_types) == reduced.num_hidden_layers < stock.num_hidden_layers


def test_special_tokens_stay_inside_the_vocabulary() -> None:
    reduced = reduce_config(LlavaConfig(image_token_index=31_999))
    assert 0 <= reduced.image_token_index < reduced.text_config.vocab_size


def test_the_same_token_of_two_configs_stays_the_same() -> None:
    stock = WhisperConfig(decoder_start_token_id=50_257, eos_token_id=50_257, pad_token_id=50_256)
    reduced = reduce_config(stock)
    assert reduced.decoder_start_token_id == reduced.eos_token_id != reduced.pad_token_id


def test_widths_that_agree_still_agree() -> None:
    reduced = reduce_config(Qwen2VLConfig())
    assert reduced.vision_config.hidden_size == reduced.text_config.hidden_size


def test_sub_configs_shrink() -> None:
    reduced = reduce_config(CLIPConfig())
    assert reduced.text_config.num_hidden_layers == reduced.vision_config.num_hidden_layers == 2
    assert reduced.vision_config.image_size == 4 * reduced.vision_config.patch_size


def test_stages_stay_and_their_widths_double() -> None:
    reduced = reduce_config(SwinConfig())
    assert len(reduced.depths) == len(SwinConfig().depths)
    assert reduced.hidden_size == reduced.embed_dim * 2 ** (len(reduced.depths) - 1)


def test_experts_used_are_fewer_than_experts() -> None:
    reduced = reduce_config(MixtralConfig())
    assert reduced.num_experts_per_tok < reduced.num_local_experts <= 4


def test_reducing_is_deterministic() -> None:
    assert reduce_config(CLIPConfig()).to_dict() == reduce_config(CLIPConfig()).to_dict()
