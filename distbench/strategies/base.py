"""The seam of parallel strategies: what a strategy must say before launch and do in the worker.

A strategy is a frozen dataclass; its fields are its options in YAML. The heavy imports stand
inside ``build``, so that planning and listing need no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from distbench import optimizers
from distbench.core.case import DTYPE_BYTES, Case
from distbench.core.errors import UnsupportedCase as UnsupportedCase
from distbench.core.machine import Machine
from distbench.core.meshes import DATA_DIMENSIONS
from distbench.strategies.description import (
    ENGINE_SETTINGS,
    Card,
    ExcessCause,
    ExpectedCollective,
    IntendedDifference,
    SettingMeaning,
    StrategyDescription,
)
from distbench.strategies.engine import Engine

if TYPE_CHECKING:
    import torch
    from torch import distributed as dist

    from distbench.workloads.base import Workload


Batch = dict[str, "torch.Tensor"]
"""A micro-batch: its arrays by name, rows first."""


@dataclass
class StepContext:
    """The step of a training that runs on this rank, where its loss is a sum and a count."""

    batches: list[Batch] = field(default_factory=list)
    """Its micro-batches, until their labels are counted."""
    factor: torch.Tensor | None = None
    """What a sum is multiplied by, once they are."""
    is_first: bool = True
    is_without_communication: bool = False
    """Whether ranks communicate nothing in it, counts included."""
    has_counts: bool = False
    """Whether a loss was a sum and a count, in this step or before."""

    def begin(self, batches: Sequence[Batch]) -> None:
        """Begin the step that trains *batches*."""
        self.is_first = self.is_first and self.factor is None
        self.batches, self.factor = [*batches], None


@dataclass(frozen=True)
class RankContext:
    """What the worker hands to a strategy: the work, and the place of this rank."""

    case: Case
    workload: Workload
    weights_file: Path
    """File of the initial weights, the same for all strategies and world sizes."""
    device: torch.device
    rank: int
    world_size: int
    trial_folder: Path
    """Folder of this trial and its logs, the same for all ranks, for files of offload."""
    node_of_rank: Sequence[int] = ()
    """Number of the node of each rank; empty: all are on one."""
    data_rank_of: Sequence[int] = ()
    """Number of the part of the rows that each rank has, the same for those that split one copy of the model;
    empty: each has its own."""
    run_cache: Path | None = None
    """Folder, seen by rank 0, for what one trial of a run finds out for all; it need not exist yet. None:
    there is none."""
    store: dist.Store | None = None
    """Where the ranks have met; None: there is one rank, in no process group."""
    step: StepContext = field(default_factory=StepContext, compare=False)
    """The step that runs, which a feed begins."""

    @property
    def data_parallel_size(self) -> int:
        """Parts into which rows are divided: ranks, or groups of them, that have rows of their own."""
        return len(set(self.data_rank_of)) or self.world_size

    @property
    def data_parallel_rank(self) -> int:
        """Which of them this rank has."""
        return self.data_rank_of[self.rank] if self.data_rank_of else self.rank


class Strategy(ABC):
    """A way to spread one training over devices."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)
    """Distributions that must be installed."""
    early_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every warm parent of ranks imports once, whatever the suite runs: they need torch
    alone and take long. One that fails is left to the ranks that need it. What only this strategy needs
    is in ``imports``."""
    settings: ClassVar[Mapping[str, SettingMeaning]] = {}
    """Meaning of the keys of ``Engine.effective_settings`` that not every engine reports: a reader of records
    can't judge a difference in a key that nobody describes."""

    @property
    @abstractmethod
    def engine_class(self) -> str:
        """A class that ``Engine.framework_engine`` must be of: proof that what was asked for is what ran."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name with the options that matter, e.g. ``zero3+offload``."""

    @property
    def simplicity(self) -> int:
        """Order of preference among statistically tied cases: what brings the fewest parts comes first."""
        return StrategyDescription.simplicity

    @property
    def offloads(self) -> tuple[str, ...]:
        """``cpu`` or ``nvme`` for each option that moves training state off the device."""
        return ()

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Files and folders that the framework leaves behind, to be removed after each trial.

        Glob patterns, from the folder in which ranks work; ``{port}`` stands for the trial's ``MASTER_PORT``.
        """
        return ()

    @property
    def offload_folder(self) -> str:
        """Folder on a disk that training state is moved to in each step; empty: it stays in memory."""
        return ""

    @property
    def undetermined(self) -> str:
        """What of it no plan can know, because ranks find it out, in words; empty: nothing."""
        return ""

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        """Known reasons why the engine moves or keeps more than theory says."""
        return ()

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        """Operations of the theory that move frozen parameters too; all others move what is trained.

        So theory holds for a model of which only a part is trained: what is kept of frozen parameters is the
        parameters alone. None: it does not hold.
        """
        return None

    @property
    def intended_difference(self) -> IntendedDifference | None:
        """In what it is another training by design, as lossy compression is; None: it should be the same."""
        return None

    @property
    def steady_from_step(self) -> int:
        """First step, from 0 on, from which its communication repeats: nothing before it is timed."""
        return self.intended_difference.since if self.intended_difference else 0

    @property
    def steps_per_cycle(self) -> int:
        """Steps after which its communication repeats, from ``steady_from_step`` on: of local SGD those from
        one average to the next. Timed, counted and profiled steps are whole cycles."""
        return 1

    @property
    def card(self) -> Card | None:
        """What it shards, moves and keeps by theory, and when to take it; None: nobody has written that."""
        return None

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        """The strategy with the options that have cards of their own."""
        return ()

    @property
    def checkpoint_format(self) -> str:
        """Format of ``Engine.save_sharded``, if a strategy of the same format can load it; empty: none.

        Whatever its mesh and world size: each rank reads what is its own, so that none has the whole state.
        """
        return ""

    def description(self) -> StrategyDescription:
        """Description of this strategy and its options for its records."""
        settings = {**ENGINE_SETTINGS, **self.settings}
        return StrategyDescription(
            settings, self.simplicity, self.offloads, self.excess_causes, self.intended_difference
        )

    def wrapped_layer_classes(self, effective: Mapping[str, Any]) -> list[str]:
        """Classes of the layers that an engine wrapped one by one, as far as *effective* shows them."""
        return []

    def world_sizes(self, requested: Sequence[int]) -> Sequence[int]:
        """World sizes at which this strategy takes part when *requested* are requested."""
        return requested

    def processes(self, world_size: int) -> int:
        """Number of processes that drive *world_size* devices (nn.DataParallel: one)."""
        return world_size

    def data_parallel_size(self, ranks: int) -> int:
        """How many of *ranks* have rows of their own: fewer where some split the model and share rows."""
        return ranks

    def data_parallel_rank(self, rank: int, ranks: int) -> int:
        """Data-parallel index of *rank* of *ranks*, below ``data_parallel_size``: by default, ranks that
        share rows follow each other.
        """
        return rank // (ranks // self.data_parallel_size(ranks))

    def mesh_sizes(self, ranks: int) -> Mapping[str, int]:
        """Sizes of the dimensions of the device mesh of that many *ranks*, outermost first.

        By the names that torchtitan has for them: ``pp``, ``dp_replicate``, ``dp_shard``, ``cp``, ``tp``,
        ``ep``; their product is *ranks*. Empty: the strategy does not say.
        """
        return {}

    def mesh_variants(self, ranks: int) -> Sequence[Strategy] | None:
        """The strategy in every device mesh of that many *ranks*, where an option asks for all of them.

        Those that don't fit a case (``problem``) make none. None: it has one mesh.
        """
        return None

    def nearest_meshes(self, case: Case) -> Sequence[Mapping[str, int]] | None:
        """Values of the option ``mesh`` for the world size of *case*, those most like its own first.

        They need not fit the model. None: that of the strategy fits, or it has no such option.
        """
        return None

    def problem(self, case: Case, machine: Machine) -> str | None:
        """Why this strategy can't run *case* on *machine*, or None if it can."""
        return None

    def imports(self, case: Case) -> tuple[str, ...]:
        """Modules that the warm parent of the ranks imports in addition to torch's own.

        None of them may touch CUDA: what was initialised before a fork is useless after it.
        """
        return ()

    def environment(self, case: Case) -> dict[str, str]:
        """Variables that the ranks need before their first import."""
        return {}

    def prepare(self, case: Case) -> list[str]:
        """Build once, in a process of its own, what trials need (C++ ops); return what users should know."""
        return []

    def build_name(self, case: Case) -> str:
        """Name of what ``prepare`` builds for *case*, for messages; empty: nothing.

        It is built once for all cases of a run that share the name.
        """
        has_own = type(self).prepare is not Strategy.prepare
        return f"strategy {case.label} ({case.id})" if has_own else ""

    def optimizer_class(self, case: Case) -> tuple[str, str]:
        """Class and kernel of the optimizer that the live engine must have."""
        return optimizers.entry_of(case.optimizer).live_class, case.optimizer.kernel

    def traffic_by_operation(self, case: Case, parameters: int) -> dict[str, float] | None:
        """Expected bytes of a rank's collectives per step, by operation.

        Payload: each array full (nccl-tests' convention), every micro-batch, in the dtypes of *case*;
        groups of one rank move nothing. Where ranks move different amounts, it is the mean over ranks.
        *parameters* is the model's number of parameters. None: the strategy has no such theory.
        """
        return None

    def traffic(self, case: Case, parameters: int) -> Sequence[ExpectedCollective] | None:
        """The same for each dimension of the device mesh, with the number of calls where theory has one.

        By default all of ``traffic_by_operation`` is over the only dimension with several ranks. A strategy
        whose mesh has more of them says what is over which. None: the strategy has no such theory.
        """
        sizes = self.traffic_by_operation(case, parameters)
        several = [name for name, size in self.mesh_sizes(case.world_size).items() if size > 1]
        over = several[0] if len(several) == 1 else None
        return None if sizes is None else [ExpectedCollective(op, size, over) for op, size in sizes.items()]

    def traffic_as_built(
        self, case: Case, effective: Mapping[str, Any]
    ) -> Sequence[ExpectedCollective] | None:
        """The same of the live engine with the settings *effective*: only a part of it may be trained."""
        parameters = effective["parameters"]
        whole = self.traffic(case, parameters)
        trained = effective.get("trained_parameters", parameters)
        if trained == parameters or whole is None:
            return whole
        moved = effective.get("reduced_parameters", trained)
        part = self.traffic(case, moved)
        if self.operations_on_frozen is None or part is None:
            return None
        pairs = zip(whole, part, strict=True)
        # how many calls what is trained makes, the model's layers decide
        return [a if a.op in self.operations_on_frozen else replace(b, calls=None) for a, b in pairs]

    def loss_count_traffic(self, ranks: int) -> Sequence[ExpectedCollective]:
        """Sum over *ranks* of what their losses count, once a step, where a loss is a sum and a count."""
        if self.data_parallel_size(ranks) == 1:
            return ()
        sizes = {name: size for name, size in self.mesh_sizes(ranks).items() if size > 1}
        size, stages = DTYPE_BYTES["fp64"], sizes.get("pp", 1)
        if stages > 1:
            # only ranks that have the last stage compute a loss
            over = [name for name in DATA_DIMENSIONS if name in sizes]
            return [ExpectedCollective("all_reduce", size / stages, name) for name in over]
        # among all ranks, which are no dimension where there are several
        return [ExpectedCollective("all_reduce", size, next(iter(sizes)) if len(sizes) == 1 else None)]

    def disk_traffic(self, case: Case, parameters: int) -> dict[str, float] | None:
        """Bytes that a rank should read from ``offload_folder`` (``read``) and write (``written``) in a step.

        None: nothing is moved to a disk, or the strategy has no such theory.
        """
        return None

    def required_settings(self, case: Case) -> dict[str, Any]:
        """Own settings, such as ``offload.optimizer``, that ``Engine.effective_settings`` must show."""
        return {}

    @abstractmethod
    def build(self, context: RankContext) -> Engine:
        """Engine of this rank, its weights loaded. Runs in the worker.

        Raises:
            UnsupportedCase: what only a rank can see forbids it.
        """

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        """Expected bytes of a rank's model states, by kind; None if the strategy has no memory model.

        Keys: ``parameters``, ``gradients``, ``optimizer_state`` and ``master``, by the table of
        ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054, section 5 and figure 1), with the dtypes
        in use in place of its 2 + 2 + K bytes, for a model of *parameters* elements. Padding and
        buffers are no part of it. Without torch.
        """
        return None

    def model_states_as_built(
        self, case: Case, parameters: int, effective: Mapping[str, Any]
    ) -> dict[str, float] | None:
        """The same of the live engine whose settings are *effective*: what it found out it knows."""
        whole = self.model_states(case, parameters)
        trained = effective.get("trained_parameters", parameters)
        if trained == parameters or whole is None:
            return whole
        part = self.model_states(case, trained)
        reduced = self.model_states(case, effective.get("reduced_parameters", trained))
        if self.operations_on_frozen is None or part is None or reduced is None:
            return None
        return {**part, "parameters": whole["parameters"], "gradients": reduced["gradients"]}


PLUGIN_BASE = Strategy
REFERENCE_STRATEGY = "single"
"""Reference of equivalence, convergence and checkpoints by definition: one device and no wrapper, so nothing
of a strategy is in its way."""
SPEED_BASELINE = "ddp"
"""The strategy that speeds are shown relative to: what everybody starts from on several devices."""
SHARDED_REFERENCE = "fsdp"
"""Stand-in for ``REFERENCE_STRATEGY`` when a model does not fit on one device: torch's own sharding."""
TORCH_CHECKPOINT = "torch.distributed.checkpoint, by the model's own names"
"""``Strategy.checkpoint_format`` of plain torch: distributed tensors know which part of the whole they
are."""
HELPERS = ("cards", "description", "engine", "torch_engine")
"""Modules of this package that are shared code, not plug-ins."""
