"""Small GGUF files: a Llama of 16 dimensions with a byte-level tokenizer, in fp32 or quantised."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests import tokenizers_zoo as zoo

TOKENIZER = zoo.byte_level()
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" + (
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADS, KV_HEADS, WIDTH, INNER, LAYERS = 4, 2, 32, 64, 2


def small_llama() -> LlamaForCausalLM:
    """Random weights, equal in every call."""
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(TOKENIZER),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=WIDTH // HEADS,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()


def _rotated(weight: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp's order of the rows of query and key projections: the two halves of each head alternate."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    template: str | None = TEMPLATE,
    eos: str = "<|im_end|>",
    pad: str = "<|endoftext|>",
    quantised: bool = False,
) -> None:
    """A GGUF file of `small_llama` and its tokenizer; `quantised`: matrices in Q8_0."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants

    writer = GGUFWriter(str(path), architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENIZER))
    vocabulary = sorted(TOKENIZER.get_vocab().items(), key=lambda entry: entry[1])
    special = set(TOKENIZER.all_special_tokens) | {"<|box|>"}
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token, _ in vocabulary])
    merges = json.loads(TOKENIZER.backend_tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(merge) for merge in merges])
    ids = TOKENIZER.get_vocab()
    writer.add_bos_token_id(ids["<|im_start|>"])
    writer.add_eos_token_id(ids[eos])
    writer.add_pad_token_id(ids[pad])
    if template is not None:
        writer.add_chat_template(template)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    for name, parameter in small_llama().named_parameters():
        value = parameter.detach().numpy()
        short = name.removeprefix("model.").removesuffix(".weight")
        if short == "embed_tokens":
            target = "token_embd.weight"
        elif short == "norm":
            target = "output_norm.weight"
        else:
            _, layer, part = short.split(".", 2)
            target = f"blk.{layer}.{names[part]}.weight"
            if part in ("self_attn.q_proj", "self_attn.k_proj"):
                value = _rotated(value, HEADS if part == "self_attn.q_proj" else KV_HEADS)
        if quantised and value.ndim == 2:
            kind = GGMLQuantizationType.Q8_0
            writer.add_tensor(target, quants.quantize(value, kind), raw_dtype=kind)
        else:
            writer.add_tensor(target, np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
