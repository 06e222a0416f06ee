"""Dimensions of models of transformers whose blocks are those of ``transformer``. Without torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

from distbench.core.errors import as_yaml
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
    "kv_heads": "num_key_value_heads",
}
_DIFFERENT = ("attention_bias", "mlp_bias", "quantization_config")
"""Keys that change the blocks if they are set."""


def decoder_dimensions(
    model_type: str | None, config: dict[str, Any], vocab_size: int, length: int
) -> Dimensions | str:
    """Dimensions of a decoder for rows of *length* tokens; or the reason why its blocks are not known.

    Args:
        config: Keys of the configuration; those that it leaves out have the defaults of transformers.
    """
    if model_type not in _TYPES:
        return f"the operators of model_type = {model_type} are not known before it runs"
    keys = _hf_source.config_keys(model_type)

    def value(key: str) -> Any:
        return keys.value(key, config) if keys else config.get(key)

    sizes = {name: value(key) for name, key in _SIZES.items()}
    sizes["kv_heads"] = value("num_key_value_heads") or sizes["heads"]
    for name, size in sizes.items():
        if not _is_size(size):
            return f"config.{_SIZES[name]} = {as_yaml(size)}: a number above 0 is needed"
    if reason := _difference(value, sizes):
        return reason
    window = value("sliding_window") if value("use_sliding_window") is not False else None
    return Dimensions(
        **sizes,
        vocab_size=vocab_size,
        tied=bool(value("tie_word_embeddings")),
        window=window if _is_size(window) and window < length else None,
    )


def _difference(value: Callable[[str], Any], sizes: dict[str, int]) -> str:
    """Reason why blocks with the keys of *value* are others than those of ``transformer``; empty: none."""
    heads, activation = sizes["heads"], value("hidden_act")
    if heads % sizes["kv_heads"]:
        return f"config.num_key_value_heads = {sizes['kv_heads']} does not divide {heads} heads"
    head_dim = value("head_dim")
    if head_dim and head_dim * heads != sizes["dim"]:
        return f"config.head_dim = {as_yaml(head_dim)}: {heads} heads are not as wide as the model"
    if activation not in (None, "silu"):
        return f"config.hidden_act = {as_yaml(activation)}: steps are known with silu"
    changed = next((key for key in _DIFFERENT if value(key)), "")
    return f"config.{changed} is set: steps are known without it" if changed else ""


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
