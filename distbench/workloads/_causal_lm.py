"""The module behind ``huggingface``: a transformers model that takes ids and gives logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from distbench.errors import did_you_mean

# taken by every configuration, and kept under other names
_ALSO_TAKEN = ("attn_implementation", "rope_scaling", "rope_theta")


class CausalLM(nn.Module):
    """A causal LM with tensors in and out, as every wrapper of a module expects them."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        # from_config draws the weights; only from_pretrained would download any
        self.model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Logits (batch, seq, vocabulary) for token ids (batch, seq)."""
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def make_config(model_type: str, options: dict[str, Any]) -> PreTrainedConfig:
    """Configuration of *model_type* with *options* in place of its defaults.

    Defaults that would spoil a comparison are replaced too: dropout is off, because each strategy
    would drop something else, and a special token outside of the vocabulary is none.

    Raises:
        ValueError: transformers knows no such type, or its configuration no such key (it would
            take any key without a word).
    """
    try:
        config = AutoConfig.for_model(model_type)
    except ValueError as error:
        # what transformers says lists hundreds of names
        raise ValueError(f"model_type = {model_type!r} is unknown to the installed transformers") from error
    known = {*config.to_dict(), *config.attribute_map, *_ALSO_TAKEN}
    unknown = sorted(set(options) - known)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"config: {model_type} has no {', '.join(unknown)}; {hint}")
    return AutoConfig.for_model(model_type, **{**_neutral(config, options["vocab_size"]), **options})


def blocks(module: nn.Module) -> list[nn.Module]:
    """Layers that transformers declares as not to be split.

    Raises:
        ValueError: the model names none, or has none of those that it names.
    """
    model: Any = module.model
    names = set(model._no_split_modules or ())
    layers = [part for part in model.modules() if type(part).__name__ in names]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} does not say which of its layers to shard (_no_split_modules = "
            f"{sorted(names)}); use the workload 'user' with layer_classes, or another model_type"
        )
    return layers


def _neutral(config: PreTrainedConfig, vocab_size: int) -> dict[str, Any]:
    defaults = config.to_dict()
    dropout = {key: 0.0 for key, value in defaults.items() if "drop" in key and isinstance(value, float)}
    outside = {
        key: None
        for key, value in defaults.items()
        if key.endswith("_token_id") and isinstance(value, int) and value >= vocab_size
    }
    return {**dropout, **outside}
