"""``misnamed``: a model whose workload declares modules that it does not have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distbench.workloads.mixture import ExpertLayers
from distbench.workloads.splits import TensorSplits
from distbench.workloads.transformer import Transformer


@dataclass(frozen=True)
class Misnamed(Transformer):
    """The transformer, with another name for its output projections and for its experts."""

    def tensor_splits(self) -> TensorSplits:
        right = super().tensor_splits()
        return replace(right, rowwise=("blocks.*.attention.w_o", *right.rowwise[1:]))

    def expert_layers(self) -> ExpertLayers | None:
        right = super().expert_layers()
        return right and replace(right, modules="blocks.*.ffn.expert")
