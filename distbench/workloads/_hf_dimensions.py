"""Dimensions of models of transformers whose blocks are those of ``transformer``. Without torch."""

from __future__ import annotations

from typing import Any, TypeGuard

from distbench.workloads import _hf_source
from distbench.workloads._dimensions import Dimensions

_TYPES = ("llama", "mistral", "qwen2")
"""Architectures with RMSNorm, rotary positions, grouped heads and SwiGLU; qwen2 adds biases to queries, keys
and values, which are too small to matter for time."""
_SIZES = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "ffn_dim": "intermediate_size",
}
_DIFFERENT = ("attention_bias", "mlp_bias", "quantization_config")
"""Keys that change the blocks if they are set."""


def decoder_dimensions(
    model_type: str | None, config: dict[str, Any], vocab_size: int, length: int
) -> Dimensions | None:
    """Dimensions of a decoder for rows of *length* tokens; None: its blocks are others, or not known.

    Args:
        config: Keys of the configuration; those that it leaves out have the defaults of transformers.
    """
    if model_type not in _TYPES:
        return None
    keys = _hf_source.config_keys(model_type)

    def value(key: str) -> Any:
        return keys.value(key, config) if keys else config.get(key)

    sizes = {name: value(key) for name, key in _SIZES.items()}
    heads = sizes["heads"]
    kv_heads = value("num_key_value_heads") or heads
    if not all(_is_size(each) for each in (*sizes.values(), kv_heads)):
        return None
    head_dim = value("head_dim") or sizes["dim"] // heads
    is_other = head_dim * heads != sizes["dim"] or value("hidden_act") not in (None, "silu")
    if is_other or heads % kv_heads or any(value(key) for key in _DIFFERENT):
        return None
    window = value("sliding_window") if value("use_sliding_window") is not False else None
    return Dimensions(
        **sizes,
        kv_heads=kv_heads,
        vocab_size=vocab_size,
        tied=bool(value("tie_word_embeddings")),
        window=window if _is_size(window) and window < length else None,
    )


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
