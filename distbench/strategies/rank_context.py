"""Context of a rank: the case, workload, device and place that it builds an engine of, and its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from distbench.core.case import Case

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

    from distbench.workloads.base import Workload

Batch = dict[str, "torch.Tensor"]
"""A micro-batch: its arrays by name; the first axis is that of the samples."""


@dataclass
class StepContext:
    """State of the current step on this rank, for losses that are a sum and a count."""

    batches: list[Batch] = field(default_factory=list)
    """Micro-batches of the step, until their labels are counted."""
    factor: torch.Tensor | None = None
    """Factor of the loss sums, once labels are counted."""
    is_first: bool = True
    is_without_communication: bool = False
    """True if ranks communicate nothing in the step, not even counts."""
    has_counts: bool = False
    """True once a loss was a sum and a count, in this step or before."""
    weighs_labels: bool = False
    """True if the samples of the data have different numbers of labels."""

    def begin(self, batches: Sequence[Batch]) -> None:
        """Begin the step that trains on *batches*."""
        self.is_first = self.is_first and self.factor is None
        self.batches, self.factor = [*batches], None


@dataclass(frozen=True)
class RankContext:
    """Everything a rank needs to build an engine: case, workload, device and rank."""

    case: Case
    workload: Workload
    weights_file: Path
    """File of the initial weights, the same for all strategies and world sizes."""
    device: torch.device
    rank: int
    world_size: int
    trial_folder: Path
    """Folder of this trial and its logs, the same for all ranks; used for offloaded files."""
    node_of_rank: Sequence[int] = ()
    """Number of the node of each rank; empty: all are on one node."""
    data_rank_of: Sequence[int] = ()
    """Data-parallel rank of each rank; ranks that split one replica share it. Empty: each rank has its
    own."""
    random_stream: int = 0
    """Stream of random numbers that the model draws on this rank (``MeshShape.random_stream``)."""
    run_cache: Path | None = None
    """Cache folder of the run, visible to rank 0, for results that one trial computes for all. It may not
    exist yet. None: there is no such folder."""
    store: dist.Store | None = None
    """Store of the ranks' rendezvous; None: there is one rank, in no process group."""
    step: StepContext = field(default_factory=StepContext, compare=False)
    """The current step; the code that feeds batches begins it."""

    @property
    def data_parallel_size(self) -> int:
        """Number of groups of ranks with different samples: ranks, or groups that split one replica."""
        return len(set(self.data_rank_of)) or self.world_size

    @property
    def data_parallel_rank(self) -> int:
        """Data-parallel rank of this rank."""
        return self.data_rank_of[self.rank] if self.data_rank_of else self.rank
