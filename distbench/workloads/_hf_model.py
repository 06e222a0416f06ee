"""The module behind ``huggingface``: a transformers model that takes tensors and gives logits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from distbench.core.errors import did_you_mean
from distbench.data.base import POSITION_IDS
from distbench.workloads._hf_files import is_noise
from distbench.workloads._hf_source import EXTRA_KEYS
from distbench.workloads.base import at_least_fp32

_AUTO_CLASSES = {
    "causal-lm": transformers.AutoModelForCausalLM,
    "masked-lm": transformers.AutoModelForMaskedLM,
    "seq2seq": transformers.AutoModelForSeq2SeqLM,
    "image-classification": transformers.AutoModelForImageClassification,
}


class TensorModel(nn.Module):
    """A model with tensors in and out, as every wrapper of a module expects them."""

    def __init__(self, model: PreTrainedModel, inputs: tuple[str, ...], *, has_cache: bool) -> None:
        super().__init__()
        self.model = model
        self._inputs = inputs
        self._more = {"use_cache": False} if has_cache else {}
        self._is_balanced = bool(getattr(model.config, "output_router_logits", False))
        if self._is_balanced:
            _check_balance(model)

    def forward(
        self, *inputs: torch.Tensor, position_ids: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Logits, classes last; if experts are balanced, also the balancing loss of each row (rows,).

        *position_ids* has the place of each token in its document, if rows are packed.
        """
        packed = {} if position_ids is None else {POSITION_IDS: position_ids}
        output = self.model(**dict(zip(self._inputs, inputs, strict=True)), **packed, **self._more)
        logits: torch.Tensor = output.logits
        if not self._is_balanced:
            return logits
        model: Any = self.model
        balance = row_balance(output.router_logits, len(inputs[0]), model.num_experts_per_tok)
        return logits, model.router_aux_loss_coef * balance


def make_model(task: str, config: PreTrainedConfig, folder: str | None = None) -> PreTrainedModel:
    """Create the model for *task* with drawn weights, or with those in *folder*.

    Raises:
        ValueError: the weights of *folder* are not those of the model.
    """
    if folder is None:
        # from_config draws the weights; only from_pretrained would download any
        drawn: PreTrainedModel = _AUTO_CLASSES[task].from_config(config, dtype=torch.float32)
        return drawn
    model, found = _AUTO_CLASSES[task].from_pretrained(
        Path(folder),
        config=config,
        dtype=torch.float32,
        local_files_only=True,
        use_safetensors=True,
        ignore_mismatched_sizes=True,
        output_loading_info=True,
    )
    # transformers would draw what is missing
    if unlike := [*_key_names(found["missing_keys"]), *_key_names(found["mismatched_keys"])]:
        more = f" and {len(unlike) - 3} more" if len(unlike) > 3 else ""
        raise ValueError(
            f"from_pretrained = {folder!r} has missing weights, or weights of another shape, for "
            f"{', '.join(unlike[:3])}{more} of {type(model).__name__}; save the whole model of this "
            "task with save_pretrained, or use another task"
        )
    loaded: PreTrainedModel = model
    return loaded


def _key_names(keys: Any) -> list[str]:
    return sorted(key if isinstance(key, str) else str(key[0]) for key in keys)


def make_config(model_type: str, options: dict[str, Any], data_sizes: dict[str, Any]) -> PreTrainedConfig:
    """Configuration of *model_type* with *options* and *data_sizes* in place of its defaults.

    Defaults that would spoil a comparison are replaced too: dropout is off, because each strategy
    would drop other elements, and special tokens outside of the vocabulary are removed.

    Args:
        options: Some keys, or with ``model_type`` a whole configuration, as transformers stores it.
        data_sizes: Sizes that the data shares, by keys of configurations; ignored if *model_type* lacks one.

    Raises:
        ValueError: transformers knows no such type, or its configuration no such key (it would
            accept any key silently).
    """
    try:
        config = AutoConfig.for_model(model_type)
    except ValueError as error:
        # the message of transformers lists hundreds of names
        raise ValueError(f"model_type = {model_type!r} is unknown to the installed transformers") from error
    known = {*config.to_dict(), *config.attribute_map, *EXTRA_KEYS}
    is_whole = "model_type" in options
    unknown = [] if is_whole else sorted(set(options) - known)
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"config: {model_type} has no {', '.join(unknown)}; {hint}")
    if "vocab_size" in data_sizes and "vocab_size" not in known:
        raise ValueError(
            f"model_type = {model_type!r} consists of several models and has no single vocab_size"
        )
    sizes = {key: value for key, value in data_sizes.items() if key in known}
    given = {key: value for key, value in options.items() if key != "model_type"}
    if is_whole:
        given |= {key: None for key, value in given.items() if _is_outside(key, value, sizes)}
    return AutoConfig.for_model(model_type, **{**_neutral_options(config, sizes), **given, **sizes})


def check_positions(model: nn.Module, length: int) -> None:
    """Check that *model* has positions for rows of *length*.

    Raises:
        ValueError: a position table is shorter, so an index would be out of range in a forward pass.
    """
    for name, part in model.named_modules():
        is_table = isinstance(part, nn.Embedding) and ("position" in name or name.endswith("wpe"))
        if not is_table or "relative" in name:
            continue
        # RoBERTa counts positions from the index after that of padding
        first = 0 if part.padding_idx is None else part.padding_idx + 1
        if length > part.num_embeddings - first:
            raise ValueError(
                f"seq_len or target_len = {length}, but {name} has {part.num_embeddings - first} "
                "positions; use shorter rows, or set config: max_position_embeddings (n_positions)"
            )


def repeated_layers(model: nn.Module) -> list[nn.Module]:
    """Repeated blocks of *model*: the items of its outermost module lists whose items have children.

    ``_no_split_modules`` of transformers is for placing a model on devices: it names embeddings as well.

    Raises:
        ValueError: there is none.
    """
    found = list(_find_layers(model))
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no nn.ModuleList of layers to shard one by one; use the workload "
            "'user' with layer_classes, or another model_type"
        )
    return found


def row_balance(router_logits: tuple[torch.Tensor, ...], rows: int, top_k: int) -> torch.Tensor:
    """Balancing loss of each row (rows,): transformers' ``load_balancing_loss_func`` of that row alone.

    Over a batch it is a product of means, which depends on how the batch is divided; the mean of the rows'
    losses does not.

    Args:
        router_logits: Logits of each layer (rows * positions, experts).
        top_k: Experts that a token is sent to.
    """
    shares, chosen = [], []
    for logits in router_logits:
        probabilities = at_least_fp32(logits).unflatten(0, (rows, -1)).softmax(-1)
        sent = torch.zeros_like(probabilities).scatter(-1, probabilities.topk(top_k, dim=-1).indices, 1.0)
        shares.append(probabilities.mean(1))
        chosen.append(sent.mean(1))
    experts = shares[0].shape[-1]
    balance: torch.Tensor = experts * (torch.stack(chosen).mean(0) * torch.stack(shares).mean(0)).sum(-1)
    return balance


def _check_balance(model: PreTrainedModel) -> None:
    has_function = hasattr(sys.modules[type(model).__module__], "load_balancing_loss_func")
    if not (
        has_function and hasattr(model, "num_experts_per_tok") and hasattr(model, "router_aux_loss_coef")
    ):
        raise ValueError(
            f"config: output_router_logits: the balancing loss of {type(model).__name__} is not that of "
            "Mixtral, and others are not supported; set it to false, or use the workload 'user'"
        )


def _find_layers(model: nn.Module) -> Iterator[nn.Module]:
    for child in model.children():
        is_list = isinstance(child, nn.ModuleList) and len(child) > 0
        # an item without children is a projection, or the stand-in for an absent layer in a pipeline stage
        layers = [item for item in child.children() if any(True for _ in item.children())] if is_list else []
        if layers:
            yield from layers
        else:
            yield from _find_layers(child)


def _neutral_options(config: PreTrainedConfig, sizes: dict[str, Any]) -> dict[str, Any]:
    defaults = config.to_dict()
    noise = {key: 0.0 for key, value in defaults.items() if is_noise(key) and isinstance(value, float)}
    return {**noise, **{key: None for key, value in defaults.items() if _is_outside(key, value, sizes)}}


def _is_outside(key: str, value: object, sizes: dict[str, Any]) -> bool:
    """True if *value* is the id of a special token outside of the vocabulary."""
    return (
        key.endswith("_token_id") and isinstance(value, int) and value >= sizes.get("vocab_size", value + 1)
    )
