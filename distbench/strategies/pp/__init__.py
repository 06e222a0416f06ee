"""``pp``: pipeline parallelism of torch, the layers in stages on one rank after another."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distbench import registry
from distbench.bounds import Count
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import PORTIONS, SHARDING, Card, Meaning, points
from distbench.strategies.pp.card import card_of
from distbench.strategies.pp.cuts import By, cut
from distbench.strategies.pp.schedules import SCHEDULES, Name, Schedule, fitting
from distbench.workloads.base import Workload
from distbench.workloads.stages import Stages


@dataclass(frozen=True)
class PipelineParallel(Strategy):
    """Pipeline parallelism: layers in stages on one rank after another, each busy with a micro-batch."""

    engine = "PipelineEngine"
    early = ("distbench.strategies.pp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "stages", "layers_of_stages"),
        **points(PORTIONS, "schedule", "micro_batches", "in_flight", "in_flight_theory", "bubble_theory"),
    }

    schedule: Name = "1F1B"
    """Order of forward and backward passes, by the name that torch has for it. GPipe and 1F1B have one stage
    on a rank; Interleaved1F1B, LoopedBFS and InterleavedZeroBubble several; ZBVZeroBubble and DualPipeV two,
    one from the front and one from the back."""
    micro_batches: Count = 4
    """Parts into which the pipeline cuts each micro-batch of the suite, which it has to divide."""
    stages_per_rank: Count | None = None
    """Stages of a rank; null: the fewest that the schedule takes, 1 or 2."""
    split: By = "count"
    """count: the stages have equally many layers. parameters: the largest stage, with embedding or head, is
    as small as it can be."""

    @property
    def label(self) -> str:
        return "pp" if self.schedule == "1F1B" else f"pp-{self.schedule.lower()}"

    @property
    def simplicity(self) -> int:
        # behind sharding and tensor parallelism: the loop itself is another
        return 44 + list(SCHEDULES).index(self.schedule)

    @property
    def card(self) -> Card:
        return card_of(self.schedule)

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(schedule="Interleaved1F1B"), cls(schedule="ZBVZeroBubble")

    @property
    def order(self) -> Schedule:
        """What the schedule needs."""
        return SCHEDULES[self.schedule]

    @property
    def per_rank(self) -> int:
        """Stages of a rank."""
        return self.stages_per_rank or self.order.default_per_rank

    def layers_of_stages(self, model: Stages, ranks: int) -> list[range]:
        """Layers of each stage over *ranks*."""
        return cut(model, ranks * self.per_rank, self.split)

    def data_ranks(self, ranks: int) -> int:
        return 1

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {"pp": ranks}

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = model_of(case)
        if model is None:
            return self.uncut(case)
        return (
            self._stage_problem(model, case.world_size)
            or self._micro_batch_problem(case.batch.micro_batch_size, case.world_size)
            or self._not_offered(case)
            or state_problem(case, who=self.label)
        )

    def _stage_problem(self, model: Stages, ranks: int) -> str | None:
        """Why the stages can't be made of *model* on *ranks*, or None."""
        allowed = self.order.per_rank
        if ranks < 2:
            return "a pipeline needs at least 2 ranks; use single, or a larger world size"
        if self.per_rank not in allowed:
            least = f"at least {allowed.start}" if len(allowed) > 1 else f"exactly {allowed.start}"
            return (
                f"stages_per_rank = {self.per_rank}, and the schedule {self.schedule} has {least}; set "
                f"stages_per_rank: {allowed.start}, or leave it out"
            )
        stages, layers = ranks * self.per_rank, len(model.layers)
        if layers >= stages:
            return None
        most = max((size for size in range(2, ranks) if size * self.per_rank <= layers), default=0)
        instead = f"a world size of at most {most}, or a model of" if most else "a model of"
        return (
            f"{layers} layers can't be cut into {stages} stages ({ranks} ranks x {self.per_rank} of each); "
            f"use {instead} at least {stages} layers"
        )

    def _micro_batch_problem(self, samples: int, ranks: int) -> str | None:
        """Why a micro-batch of *samples* can't go through, or None."""
        unfit = self.order.unfit(self.micro_batches, ranks, self.per_rank)
        if not unfit and samples % self.micro_batches == 0:
            return None
        reason = unfit and f"the schedule {self.schedule} {unfit}"
        reason = reason or f"it does not divide batch.micro_batch_size = {samples}"
        known = list(fitting(self.schedule, samples, ranks, self.per_rank))
        nearest = sorted(sorted(known, key=lambda number: abs(number - self.micro_batches))[:3])
        instead = f"{', '.join(map(str, nearest))} would do" if nearest else "use a larger micro-batch"
        return (
            f"micro_batches = {self.micro_batches}: {reason}; of a micro-batch of {samples} samples {instead}"
        )

    def _not_offered(self, case: Case) -> str | None:
        """What this strategy is not offered with, or None."""
        if case.compile != "none":
            return "compile is not offered with pipeline parallelism; use compile: false"
        if case.precision.float8 != "none":
            return "float8 is not offered with pipeline parallelism; use precision: bf16"
        return None

    def uncut(self, case: Case) -> str:
        """Why a workload that says nothing of stages can't be trained so."""
        return (
            f"pipeline parallelism: the workload {case.workload.name} does not say how it is cut into "
            "stages; use transformer or mlp, or a plug-in with Workload.stages"
        )

    def expected(self, case: Case) -> dict[str, Any]:
        model = model_of(case)
        layers = self.layers_of_stages(model, case.world_size) if model else []
        return {
            "schedule": self.schedule,
            "stages": case.world_size * self.per_rank,
            "micro_batches": self.micro_batches,
            "layers_of_stages": tuple(map(len, layers)),
        }

    def collectives(self, case: Case, parameters: int) -> dict[str, float] | None:
        # over each border between two ranks the activations of every sample go forward, and as many
        # gradients back (Narayanan et al. 2021, section 3.2); those of tied weights are summed over both ends
        model, ranks = model_of(case), case.world_size
        if model is None:
            return None
        owners = [self.order.owner(stage, ranks) for stage in range(ranks * self.per_rank)]
        borders = sum(here != there for here, there in itertools.pairwise(owners))
        element = BYTES[case.precision.compute]
        moved = 2 * borders * case.batch.global_batch_size * model.numbers_between * element / ranks
        tied = model.tied_parameters * BYTES[case.precision.master] if owners[0] != owners[-1] else 0
        sizes = {"send": moved, "recv": moved, "all_reduce": 2 * tied / ranks}
        return {op: size for op, size in sizes.items() if size}

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model, ranks = model_of(case), case.world_size
        if model is None:
            return None
        held: Counter[int] = Counter()
        for stage, layers in enumerate(self.layers_of_stages(model, ranks)):
            held[self.order.owner(stage, ranks)] += model.parameters(layers)
        return zero_table(case, max(held.values()), stored=case.precision.master)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.pp.engine import build_pp

        return build_pp(self, setting)


def model_of(case: Case) -> Stages | None:
    """How the model of *case* can be cut, or None."""
    workload: Workload = registry.make("workloads", case.workload)
    return workload.stages()
