"""``misnamed``: a model whose workload declares modules that it does not have."""

from __future__ import annotations

from dataclasses import dataclass, replace

from distbench.workloads.mixture import Mixture
from distbench.workloads.splits import Splits
from distbench.workloads.transformer import Transformer


@dataclass(frozen=True)
class Misnamed(Transformer):
    """The transformer, with another name for its output projections and for its experts."""

    def splits(self) -> Splits:
        right = super().splits()
        return replace(right, rows=("blocks.*.attention.w_o", *right.rows[1:]))

    def mixture(self) -> Mixture | None:
        right = super().mixture()
        return right and replace(right, modules="blocks.*.ffn.expert")
