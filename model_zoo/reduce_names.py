"""What the name of a config field says about its meaning: the rules of `reduce`."""

from __future__ import annotations

import re

HIDDEN = (
    "d_model",
    "n_embd",
    "embed_dim",
    "hidden_size",
    "dim",
    "embed_dims",
    "hidden_sizes",
    "hidden_dim",
    "embedding_size",
    "width",
)
"""Names of the width of the hidden state, the likeliest first."""

WIDTH = re.compile(
    r"(hidden|intermediate|embed|embedding|ffn|mlp|ff|feed_?forward|inner|project(ion|or)?|pooler|word_embed_proj|fpn|"
    r"fusion|conv|tdnn|codevector|codebook|class_embed|out|output|input|model|latent|neck|adapter|enc|lora|mask|"
    r"feature|descriptor|class|visual|vision|text|audio|semantic|backbone|cross|entity_emb)"
    r"_?(size|sizes|dim|dims|channels|width|units|rank)(_global|_mlp)?$"
    r"|^(d_model|d_ff|dff|dim_ff|n_embd|n_inner|dim|width|d_inner|d_latents|emb_dim|lru_width|q_lora_rank|"
    r"kv_lora_rank|o_lora_rank|moe_hidden_size|ffn_hidden_size|hidden_size_per_layer_input|base_channels|"
    r"in_channels|out_channels|output_channels|num_filters|stem_channels|upsample_initial_channel|"
    r"encoder_in_channels|decoder_in_channels|dim_feedforward|\w+_dim_feedforward|share_expert_dim|"
    r"classifier_proj_size|coordinate_size|condition_dim|upsample_groups|vector_quantization_hidden_dimension|patch_embeds?_hidden_size|embed_dim_per_stage|vit_dim|shape_size|conv_dim|xvector_output_dim|time_step_rank|mamba_dt_rank)$"
)
NOT_WIDTH = re.compile(
    r"head_dim|state_dim|act_dim|kernel|patch_(size|stride|length|padding|dim)|patches|image_size|vocab|num_embeddings|max_|audio_embed_sizes|codebook_size|"
    r"input_size$|feature_size$|feat_sizes|latent_size$|mask_size|query_dim|mel_dim|crop_size|^input_dim$|class_size|"
    r"subsampling_conv|num_channels|^output_size$|^in_channels_rgb$"
)
GIVEN = {"image_grid_pinpoints"}
"""Fields that no class derives from others although their default is None."""
LAYERS = re.compile(
    r"(\w+_)?(num_)?(hidden_)?layers|n_layers?|\w*n_layers?|depth|\w+_depth|num_blocks|num_hidden_blocks|"
    r"num_hidden_groups|num_encoder_blocks_|\w*num_(attention|encoder|decoder|hidden)_layers|num_layers_per_stack"
)
DEPTHS = re.compile(r"depths?|layers|stage_num_blocks|blocks_per_stage|layer_depths|num_block_repeats|n_attn_blocks")
VOCABULARY = re.compile(r"vocab_size$|^vocab_size|byte_group_vocab$")
POSITIONS = re.compile(r"max_(position|source|target|encoder_position|decoder_position)\w*|^n_positions$|^n_ctx$")
QUERIES = re.compile(r"num_queries|num_query_tokens|num_denoising|num_detection_tokens|num_latents|latent_query_num")
FRAMES = re.compile(r"num_frames|frames_per_clip")
PERIOD = re.compile(r"_layer_(period|interval)$|_interval$")
OFFSET = re.compile(r"_layer_offset$|^first_k_dense_replace$")
HEADS = re.compile(r"(\w+_)?(num_)?(\w+_)?attention_heads|n_heads?|num_heads|\w+_(num_)?heads_per_stage|\w+_num_heads")
HEADS_STEM = re.compile(r"(num_)?(self_|cross_)?attention_heads|n_heads?$|num_heads")
KV_HEADS = re.compile(r"(\w+_)?num_key_value_heads|num_kv_heads")
EXPERTS = re.compile(r"(moe_)?num_(local_|routed_)?experts|n_routed_experts|moe_num_experts|zero_expert_num")
EXPERTS_USED = re.compile(r"num_experts_per_tok(en)?|moe_k|moe_topk|top_k_experts|moe_top_k|num_selected_experts")
INDICES = re.compile(
    r"ind(ices|exes)$|_layer_ids$|^extract_layers$|^vision_feature_layer$|insert_layer_id|target_layers"
)
IMAGE = re.compile(r"(\w+_)?image_size|img_size|input_resolution|resolution")
TOKEN = re.compile(r"token_(id|index|idx)s?$|_token$|_ids?$|(bos|eos|pad|unk|mask|sep|cls)_(index|token)$")
