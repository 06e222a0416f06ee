"""Parallel splits of the decoder: tensor, pipeline, context and expert. Without torch."""

from __future__ import annotations

from distbench.workloads._dimensions import Dimensions
from distbench.workloads.context import ContextSplit
from distbench.workloads.mixture import ExpertLayers
from distbench.workloads.module_calls import ModuleCall
from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages

_COLWISE = ("attention.wq", "attention.wk", "attention.wv", "ffn.gate", "ffn.up")
_ROWWISE = ("attention.wo", "ffn.down")
"""Linear layers of a block that tensor parallelism splits by their outputs, and by their inputs."""


def tensor_splits(dims: Dimensions, seq_len: int) -> TensorSplits:
    """Tensor-parallel split for rows of *seq_len* positions."""
    block = "blocks.*"
    return TensorSplits(
        colwise=tuple(f"{block}.{name}" for name in _COLWISE),
        rowwise=tuple(f"{block}.{name}" for name in _ROWWISE),
        embedding="embedding",
        head="head",
        replicated=(f"{block}.attention_norm", f"{block}.ffn_norm", "norm"),
        divisible_sizes={
            name: getattr(dims, name) for name in ("heads", "kv_heads", "ffn_dim", "vocab_size")
        },
        regions=2 * dims.depth,
        layers=dims.depth,
        hidden_size=dims.dim,
        seq_len=seq_len,
        vocab_size=dims.vocab_size,
        replicated_parameters=(2 * dims.depth + 1) * dims.dim,
        replicated_tensors=2 * dims.depth + 1,
        padded_option="vocab_size",
        tied=dims.tied,
        unsupported_reason=f"experts can't be split (experts = {dims.experts}); use ep, which distributes "
        "them"
        if dims.experts
        else "",
    )


def module_calls(dims: Dimensions) -> ModuleCall:
    """Calls of the modules of a decoder, in the order of ``Dimensions.tensor_shapes``."""
    table = (("embedding", dims.vocab_size * dims.dim),)
    head = table if dims.tied else (("head", dims.vocab_size * dims.dim),)
    blocks = (_block_call(dims, f"blocks.{number}") for number in range(dims.depth))
    norm = ModuleCall((("norm", dims.dim),))
    return ModuleCall(
        calls=(ModuleCall(table, takes_data=True), *blocks, norm, ModuleCall(head, multiplies=True)),
        takes_data=True,
    )


def _block_call(dims: Dimensions, name: str) -> ModuleCall:
    queries, keys = dims.dim * dims.dim, dims.dim * dims.kv_heads * dims.head_dim
    projections = {"wq": queries, "wk": keys, "wv": keys, "wo": queries}
    matrix = dims.dim * dims.ffn_dim * (dims.experts or 1)

    def linear(own: str, elements: int) -> ModuleCall:
        return ModuleCall(((f"{name}.{own}", elements),), multiplies=True)

    attention = [linear(own, size) for own, size in projections.items()]
    if dims.experts is None:
        inside = [linear(own, matrix) for own in ("gate", "up", "down")]
    else:
        experts = tuple((f"{name}.{own}", matrix) for own in ("gate", "up", "down"))
        inside = [linear("router", dims.experts * dims.dim), ModuleCall(experts, multiplies=True)]
    norms = [ModuleCall(((f"{name}.{own}", dims.dim),)) for own in ("attention_norm", "ffn_norm")]
    return ModuleCall(
        calls=(norms[0], ModuleCall(calls=tuple(attention)), norms[1], ModuleCall(calls=tuple(inside))),
        # what experts make is multiplied by the weights of the router
        ends_with_product=dims.experts is None,
    )


def pipeline_stages(dims: Dimensions, seq_len: int) -> PipelineStages:
    """Pipeline split for rows of *seq_len* positions."""
    table = dims.vocab_size * dims.dim
    return PipelineStages(
        layer_parameters=(dims.block_parameters(),) * dims.depth,
        embedding_parameters=table,
        head_parameters=table + dims.dim,
        activation_shape=(seq_len, dims.dim),
        input_array="input_ids",
        tied_names={"head.weight": "embedding.weight"} if dims.tied else {},
        tied_parameters=table if dims.tied else 0,
    )


def context_split(dims: Dimensions, seq_len: int) -> ContextSplit:
    """Context-parallel split of rows of *seq_len* positions."""
    return ContextSplit(
        sharded_arrays=("input_ids", "labels"),
        label_array="labels",
        seq_len=seq_len,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        layers=dims.depth,
        is_full_attention=dims.window is None,
        unsupported_reason="" if dims.capacity_factor is None else "capacity_factor needs whole sequences",
    )


def expert_layers(dims: Dimensions, seq_len: int) -> ExpertLayers | None:
    """Expert layers for rows of *seq_len* positions; None: there are no experts."""
    if dims.experts is None:
        return None
    return ExpertLayers(
        modules="blocks.*.ffn.experts",
        routers="blocks.*.ffn.router",
        experts=dims.experts,
        layers=dims.depth,
        parameters=dims.depth * dims.expert_parameters(),
        tensors=3 * dims.depth,
        routed_tokens=dims.routed_tokens(seq_len),
        hidden_size=dims.dim,
        capacity=dims.expert_capacity(seq_len) if dims.capacity_factor else None,
    )
