"""Interface of parallel strategies.

A strategy is a frozen dataclass; its fields are its options in YAML. Heavy imports are inside ``build``, so
planning and listing need no torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from distbench import optimizers
from distbench.core.case import Case
from distbench.core.errors import UnsupportedCase as UnsupportedCase
from distbench.core.machine import Machine
from distbench.strategies.cards import Card
from distbench.strategies.description import (
    ENGINE_SETTINGS,
    ExcessCause,
    ExpectedCollective,
    IntendedDifference,
    RankPasses,
    SettingMeaning,
    StrategyDescription,
    TracedStep,
)
from distbench.strategies.engine import Engine
from distbench.strategies.rank_context import Batch as Batch
from distbench.strategies.rank_context import RankContext as RankContext


class Strategy(ABC):
    """A way to divide a training among devices."""

    packages: ClassVar[tuple[str, ...]] = ("torch",)
    """Distributions that must be installed."""
    early_imports: ClassVar[tuple[str, ...]] = ()
    """Modules that every fork server imports once, whatever the suite runs: they need only torch, and take
    long. If an import fails, the ranks that need the module do it. Modules that only this strategy needs are
    in ``imports``."""
    settings: ClassVar[Mapping[str, SettingMeaning]] = {}
    """Meaning of those keys of ``Engine.effective_settings`` that not every engine reports. A reader of
    records can't judge a difference in a key without a description."""

    @property
    @abstractmethod
    def engine_class(self) -> str:
        """Class that ``Engine.framework_engine`` must be an instance of, so that no other engine runs."""

    @property
    @abstractmethod
    def label(self) -> str:
        """Short name with the options that matter, e.g. ``zero3+offload``."""

    @property
    def simplicity(self) -> int:
        """Order of preference among statistically tied cases: the strategy that adds least comes first."""
        return StrategyDescription.simplicity

    @property
    def offloads(self) -> tuple[str, ...]:
        """``cpu`` or ``nvme`` for each option that moves training state off the device."""
        return ()

    @property
    def leftovers(self) -> tuple[str, ...]:
        """Files and folders that the framework leaves behind; they are removed after each trial.

        Glob patterns, relative to the folder in which ranks run; ``{port}`` is replaced by the trial's
        ``MASTER_PORT``.
        """
        return ()

    @property
    def offload_folder(self) -> str:
        """Folder on a disk that training state is moved to in each step; empty: it stays in memory."""
        return ""

    @property
    def undetermined(self) -> str:
        """Sentence on what only ranks can determine; empty: nothing."""
        return ""

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        """Known reasons why the engine communicates or stores more than theory expects."""
        return ()

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        """Operations of the theory that also move frozen parameters; all others move only trained ones.

        With them the theory covers a partly frozen model: of frozen parameters only the parameters themselves
        are stored. None: it does not cover such models.
        """
        return None

    @property
    def intended_difference(self) -> IntendedDifference | None:
        """Declared difference of the training, such as lossy compression; None: it must equal one process."""
        return None

    @property
    def steady_from_step(self) -> int:
        """First step (from 0) from which communication repeats; earlier steps are not timed."""
        return self.intended_difference.since if self.intended_difference else 0

    @property
    def steps_per_cycle(self) -> int:
        """Number of steps after which communication repeats, from ``steady_from_step`` on.

        For local SGD, the steps from one average to the next. Timed, counted and profiled steps are full
        cycles.
        """
        return 1

    @property
    def card(self) -> Card | None:
        """Card: what the strategy shards, sends and stores, and when to use it; None: no card."""
        return None

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        """The strategy with each of the options that have a card of their own."""
        return ()

    @property
    def checkpoint_format(self) -> str:
        """Format of ``Engine.save_sharded``, if a strategy of the same format can load it; empty: none.

        It is independent of mesh and world size: each rank reads its own part, so that no rank holds the full
        state.
        """
        return ""

    def description(self) -> StrategyDescription:
        """Description of this strategy and its options for its records."""
        settings = {**ENGINE_SETTINGS, **self.settings}
        return StrategyDescription(
            settings, self.simplicity, self.offloads, self.excess_causes, self.intended_difference
        )

    def wrapped_layer_classes(self, effective: Mapping[str, Any]) -> list[str]:
        """Classes of the layers that an engine wrapped one by one, as far as *effective* lists them."""
        return []

    def world_sizes(self, requested: Sequence[int]) -> Sequence[int]:
        """World sizes at which this strategy runs if *requested* are requested."""
        return requested

    def processes(self, world_size: int) -> int:
        """Number of processes that drive *world_size* devices (nn.DataParallel: one)."""
        return world_size

    def data_parallel_size(self, ranks: int) -> int:
        """Data-parallel size of *ranks* ranks: fewer if some of them split one replica and share samples."""
        return ranks

    def data_parallel_rank(self, rank: int, ranks: int) -> int:
        """Data-parallel rank of *rank* of *ranks*, below ``data_parallel_size``.

        By default, consecutive ranks share samples.
        """
        return rank // (ranks // self.data_parallel_size(ranks))

    def mesh_sizes(self, ranks: int) -> Mapping[str, int]:
        """Sizes of the dimensions of the device mesh of *ranks* ranks, outermost first.

        Names are those of torchtitan: ``pp``, ``dp_replicate``, ``dp_shard``, ``cp``, ``tp``, ``ep``; the
        product of the sizes is *ranks*. Empty: the strategy reports no mesh.
        """
        return {}

    def mesh_variants(self, ranks: int) -> Sequence[Strategy] | None:
        """The strategy in every device mesh of *ranks* ranks, if an option requests all of them.

        Meshes that don't fit a case (``problem``) yield no case. None: it has one mesh.
        """
        return None

    def nearest_meshes(self, case: Case) -> Sequence[Mapping[str, int]] | None:
        """Values of the option ``mesh`` for the world size of *case*, most similar to its own first.

        They need not fit the model. None: the mesh of the strategy fits, or it has no such option.
        """
        return None

    def canonical(self, case: Case) -> Strategy:
        """The strategy that trains *case* in the same way with the fewest options.

        Strategies that train a case in the same way have the same one, so that a plan trains it once.
        """
        return self

    def problem(self, case: Case, machine: Machine) -> str | None:
        """Reason why this strategy can't run *case* on *machine*; None if it can."""
        return None

    def imports(self, case: Case) -> tuple[str, ...]:
        """Modules that the fork server of the ranks imports in addition to torch's own.

        They must not touch CUDA: what is initialized before a fork is unusable after it.
        """
        return ()

    def environment(self, case: Case) -> dict[str, str]:
        """Environment variables that the ranks need before their first import."""
        return {}

    def prepare(self, case: Case) -> list[str]:
        """Build once, in a separate process, what trials need (C++ ops); return messages for users."""
        return []

    def build_name(self, case: Case) -> str:
        """Name of what ``prepare`` builds for *case*, for messages; empty: nothing.

        It is built once for all cases of a run with the same name.
        """
        has_own = type(self).prepare is not Strategy.prepare
        return f"strategy {case.label} ({case.id})" if has_own else ""

    def optimizer_class(self, case: Case) -> tuple[str, str]:
        """Class and kernel of the optimizer that the live engine must have."""
        return optimizers.entry_of(case.optimizer).live_class, case.optimizer.kernel

    def traffic(self, case: Case, parameters: int) -> Sequence[ExpectedCollective] | None:
        """Expected collectives of a rank in a step, by operation and mesh dimension.

        Payload: each array in full (nccl-tests' convention), every micro-batch, in the dtypes of *case*;
        groups of one rank send nothing. If ranks send different amounts, it is the mean over ranks.
        *parameters* is the model's number of parameters; padding, and what the order of the modules decides,
        are included if it is that of the workload. None: the strategy has no such theory.
        """
        return None

    def rank_passes(self, case: Case) -> RankPasses | None:
        """Forward and backward passes of a rank in a step; None: the strategy has no such theory."""
        sizes = self.mesh_sizes(case.world_size)
        split = sizes.get("tp", 1) * sizes.get("cp", 1)
        return RankPasses(case.batch.gradient_accumulation_steps, case.batch.micro_batch_size / split)

    def disk_traffic(self, case: Case, parameters: int) -> dict[str, float] | None:
        """Bytes that a rank should read from ``offload_folder`` (``read``) and write (``written``) per step.

        None: nothing is moved to a disk, or the strategy has no such theory.
        """
        return None

    def required_settings(self, case: Case) -> dict[str, Any]:
        """Settings, such as ``offload.optimizer``, that ``Engine.effective_settings`` must report."""
        return {}

    @abstractmethod
    def build(self, context: RankContext) -> Engine:
        """Engine of this rank, with its weights loaded. Runs in the worker.

        Raises:
            UnsupportedCase: a condition that only a rank can check rules it out.
        """

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        """Expected bytes of a rank's model states, by kind; None if the strategy has no memory model.

        Keys: ``parameters``, ``gradients``, ``optimizer_state`` and ``master``, by the table of ZeRO
        (Rajbhandari et al. 2020, arXiv:1910.02054, section 5 and figure 1), with the dtypes in use in place
        of its 2 + 2 + K bytes, for a model of *parameters* elements. Buffers are not included; the padding of
        shards is, if they are all those of the workload and it reports their shapes. Imports no torch.
        """
        return None

    def traced_step(self, case: Case) -> TracedStep | str:
        """Step on fake tensors from which the peak memory of *case* follows, or the reason why none does."""
        return f"steps of {case.strategy.name} are not traced; those of single, ddp, fsdp and tp are"

    def model_states_as_built(
        self, case: Case, parameters: int, effective: Mapping[str, Any]
    ) -> dict[str, float] | None:
        """Expected model states for the live engine, from its *effective* settings."""
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
"""Reference of equivalence, convergence and checkpoints by definition: one device and no wrapper, so no
strategy can affect it."""
SPEED_BASELINE = "ddp"
"""Strategy that speeds are relative to: the usual starting point on several devices."""
SHARDED_REFERENCE = "fsdp"
"""Stand-in for ``REFERENCE_STRATEGY`` when a model does not fit on one device: torch's own sharding."""
TORCH_CHECKPOINT = "torch.distributed.checkpoint, by the model's own names"
"""``Strategy.checkpoint_format`` of plain torch: a distributed tensor records which part of the full tensor
it is."""
HELPERS = (
    "cards",
    "description",
    "engine",
    "mesh_strategy",
    "rank_context",
    "replicated_strategy",
    "requirements",
    "theory",
    "torch_engine",
)
"""Modules of this folder that are shared code, not plug-ins."""
