"""Tensor and pipeline plans of transformers for causal LMs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from distbench.workloads._plans import COLWISE_GATHER_OUTPUT, EMBEDDING_ROWWISE
from distbench.workloads._stage import PipelineCut

_STAGE_CHAIN = [
    (["input_ids"], ["inputs_embeds"]),
    (["hidden_states", "attention_mask"], ["hidden_states"]),
    (["hidden_states"], ["hidden_states"]),
]
"""Inputs and outputs of embedding, layers and norm in a plan that distbench can cut into stages."""
_HEADS = ("num_attention_heads", "num_key_value_heads")
_OPTIONS = ("intermediate_size", "vocab_size")
_SEQUENCE = "transformers computes positions and masks as if the positions of a rank were a whole row"


def plan_fields(module: nn.Module) -> dict[str, Any]:
    """Fields of ``ModelLayout`` from the configuration of *module*, a causal LM."""
    model: Any = module.model
    config = model.config.get_text_config()
    name = type(config).__name__
    table, head = _embedding_and_head(module)
    tensor = {f"model.{path}": style for path, style in (model.tp_plan or {}).items()}
    missing = not type(config).base_model_tp_plan and f"{name} of transformers has no base_model_tp_plan"
    return {
        "tensor_plan": {**tensor, table: EMBEDDING_ROWWISE, head: COLWISE_GATHER_OUTPUT},
        "sizes": _sizes(config, _HEADS),
        "options": _sizes(config, _OPTIONS),
        "unsplit": missing or "",
        "uncut": _pipeline_problem(model),
        "sequence": _SEQUENCE,
    }


def pipeline_cut(module: nn.Module) -> PipelineCut:
    """Pipeline cut of *module*, a causal LM whose configuration has a plan."""
    model: Any = module.model
    base, _, container, norm = _pipeline_parts(model)
    table, head = _embedding_and_head(module)
    prefix = f"model.{model.base_model_prefix}"
    layers = (f"{prefix}.{container}.{name}" for name, _ in base.get_submodule(container).named_children())
    return PipelineCut((table,), tuple(layers), (f"{prefix}.{norm}", head))


def _embedding_and_head(module: nn.Module) -> tuple[str, str]:
    """Names of embedding and head in *module*."""
    model: Any = module.model
    names = {id(part): path for path, part in module.named_modules()}
    return names[id(model.get_input_embeddings())], names.get(id(model.get_output_embeddings()), "")


def _sizes(config: Any, options: Iterable[str]) -> dict[str, int]:
    return {option: size for option in options if isinstance(size := getattr(config, option, None), int)}


def _pipeline_problem(model: Any) -> str:
    """Reason why *model* can't be cut into stages; empty: it can."""
    config = model.config.get_text_config()
    name, plan = type(config).__name__, type(config).base_model_pp_plan
    if not plan:
        return f"{name} of transformers has no base_model_pp_plan"
    if [(list(taken), list(given)) for taken, given in plan.values()] != _STAGE_CHAIN:
        return f"base_model_pp_plan of {name} is more than an embedding, layers and a norm: {', '.join(plan)}"
    if getattr(config, "output_router_logits", False):
        return "the balancing loss needs the routers of all layers (config.output_router_logits: true)"
    return ""


def _pipeline_parts(model: Any) -> tuple[Any, str, str, str]:
    """Model without its head, and the names of embedding, layers and norm in it."""
    embedding, layers, norm = type(model.config.get_text_config()).base_model_pp_plan
    return model.base_model, embedding, layers, norm
