"""How a decoder can be divided: inside its layers, between them, by positions, by experts. Without torch."""

from __future__ import annotations

from distbench.workloads._dimensions import Dimensions
from distbench.workloads.context import Context
from distbench.workloads.mixture import Mixture
from distbench.workloads.splits import Splits
from distbench.workloads.stages import Stages

_COLUMNS = ("attention.wq", "attention.wk", "attention.wv", "ffn.gate", "ffn.up")
_ROWS = ("attention.wo", "ffn.down")
"""Linear layers of a block that tensor parallelism cuts by their outputs, and by their inputs."""


def splits(shape: Dimensions, positions: int) -> Splits:
    """What tensor parallelism cuts, for rows of that many *positions*."""
    block = "blocks.*"
    return Splits(
        columns=tuple(f"{block}.{name}" for name in _COLUMNS),
        rows=tuple(f"{block}.{name}" for name in _ROWS),
        table="embedding",
        head="head",
        whole=(f"{block}.attention_norm", f"{block}.ffn_norm", "norm"),
        counts={name: getattr(shape, name) for name in ("heads", "kv_heads", "ffn_dim", "vocab_size")},
        regions=2 * shape.depth,
        layers=shape.depth,
        width=shape.dim,
        positions=positions,
        classes=shape.vocab_size,
        whole_parameters=(2 * shape.depth + 1) * shape.dim,
        whole_tensors=2 * shape.depth + 1,
        padded="vocab_size",
        tied=shape.tied,
        never=f"it does not split experts (experts = {shape.experts}); use ep, which distributes them"
        if shape.experts
        else "",
    )


def stages(shape: Dimensions, positions: int) -> Stages:
    """What pipeline parallelism cuts, for rows of that many *positions*."""
    table = shape.vocab_size * shape.dim
    return Stages(
        layers=(shape.block_parameters(),) * shape.depth,
        before=table,
        after=table + shape.dim,
        between=(positions, shape.dim),
        input="input_ids",
        tied={"head.weight": "embedding.weight"} if shape.tied else {},
        tied_parameters=table if shape.tied else 0,
    )


def context(shape: Dimensions, positions: int) -> Context:
    """What context parallelism cuts of rows of that many *positions*."""
    return Context(
        arrays=("input_ids", "labels"),
        labels="labels",
        positions=positions,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        layers=shape.depth,
        sees_all=shape.window is None,
        never="" if shape.capacity_factor is None else "capacity_factor needs whole sequences",
    )


def mixture(shape: Dimensions, positions: int) -> Mixture | None:
    """What expert parallelism spreads, for rows of that many *positions*; None: there are no experts."""
    if shape.experts is None:
        return None
    return Mixture(
        modules="blocks.*.ffn.experts",
        routers="blocks.*.ffn.router",
        experts=shape.experts,
        layers=shape.depth,
        parameters=shape.depth * shape.expert_parameters(),
        tensors=3 * shape.depth,
        slots=shape.slots(positions),
        width=shape.dim,
        capacity=shape.capacity(positions) if shape.capacity_factor else None,
    )
