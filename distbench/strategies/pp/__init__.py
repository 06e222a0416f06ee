"""``pp``: pipeline parallelism of torch, the layers in stages on one rank after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from distbench.core.bounds import Count
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.core.meshes import Mesh, asked_by
from distbench.strategies._model_states import state_problem
from distbench.strategies._offers import not_offered
from distbench.strategies._pipeline import stages_of, uncut
from distbench.strategies._tensor_parallel import TensorParallelism
from distbench.strategies.base import TORCH_SHARDS, Setting, Strategy
from distbench.strategies.description import (
    KEEPING,
    PORTIONS,
    SHARDING,
    SPLITS_MODEL,
    Card,
    Deviation,
    ExpectedCollective,
    Meaning,
    by_operation,
    points,
)
from distbench.strategies.engine import Engine
from distbench.strategies.pp import theory
from distbench.strategies.pp.card import card_of
from distbench.strategies.pp.cuts import By, cut, ranges
from distbench.strategies.pp.inside import INSIDE, every, labels, mesh_problem, near
from distbench.strategies.pp.inside import Name as MeshName
from distbench.strategies.pp.limits import micro_batch_problem, recomputation_problem, stage_problem
from distbench.strategies.pp.schedules import ACTIVE, SCHEDULES, Name, Schedule
from distbench.workloads.stages import Stages


@dataclass(frozen=True)
class PipelineParallel(Strategy):
    """Pipeline parallelism: layers in stages on consecutive ranks, each working on another micro-batch."""

    engine = "PipelineEngine"
    shard_format = TORCH_SHARDS
    early = ("distbench.strategies.pp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "stages", "layers_of_stages", "mesh", "placements", "units", "split_tensors"),
        **points("what its layers took, by which they are cut", "layer_ms"),
        **points(PORTIONS, "schedule", "micro_batches", "in_flight", "in_flight_theory", "bubble_theory"),
        **points(PORTIONS, "sequence_parallel", "loss_parallel", "bucket_bytes_cap"),
        **points(KEEPING, "reshard_after_forward"),
    }

    schedule: Name = "1F1B"
    """Order of forward and backward passes, by torch's names. GPipe and 1F1B have one stage per rank;
    Interleaved1F1B, LoopedBFS and InterleavedZeroBubble several; ZBVZeroBubble and DualPipeV two, one from
    the front and one from the back."""
    micro_batches: Count = 4
    """Number of parts into which the pipeline splits each micro-batch of the suite; it must divide its
    size."""
    stages_per_rank: Count | None = None
    """Stages per rank. null: the minimum for the schedule, 1 or 2."""
    split: By = "count"
    """count: as equal numbers of layers as possible, one more in the first stages if they don't divide.
    parameters: minimize the size of the largest stage, including embedding or head. time: minimize the time
    of the slowest stage, by timing each layer at the start of the run."""
    mesh: dict[MeshName, Count] | Literal["auto"] = field(default_factory=dict, metadata={"since": 4})
    """Further dimensions of the device mesh, inside each pipeline rank; pp defaults to the rest of the world
    size. {dp_replicate: 2} replicates stages with DDP, {dp_shard: 2} shards them with FSDP2, both together
    with HSDP; {tp: 2} splits their layers across ranks that process the same samples. auto: a case for every
    mesh that fits."""
    sequence_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, also split the activations between layers and between stages, as the strategy tp
    does."""
    loss_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, the last stage computes the loss from logits that stay split by class."""
    reshard_after_forward: bool = field(default=False, metadata={"since": 4})
    """With mesh: {dp_shard: N}, reshard a layer after each of its forward passes, so that it is all-gathered
    for nearly every micro-batch. false: it stays unsharded until all have passed."""

    def __post_init__(self) -> None:
        if self.mesh != "auto":
            # a dimension of one rank is none, so that a case has the same id with it and without
            sizes = {name: size for name, size in self.mesh.items() if size > 1 or name == "pp"}
            object.__setattr__(self, "mesh", sizes)

    @property
    def label(self) -> str:
        name = "pp" if self.schedule == "1F1B" else f"pp-{self.schedule.lower()}"
        return "+".join([name, *labels(self)])

    @property
    def simplicity(self) -> int:
        # behind tensor parallelism: the loop itself is another; each dimension is one more idea
        return SPLITS_MODEL + 30 + list(SCHEDULES).index(self.schedule) + 10 * len(self._inside)

    @property
    def card(self) -> Card:
        return card_of(self.schedule, *self._inside)

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        meshes: tuple[dict[MeshName, int], ...] = (
            {"dp_replicate": 2},
            {"dp_shard": 2},
            {"tp": 2},
            {"dp_replicate": 2, "dp_shard": 2},
            {"dp_shard": 2, "tp": 2},
        )
        schedules = sorted(SCHEDULES, key=lambda name: name != cls.schedule)
        return *(cls(schedule=name) for name in schedules), *(cls(mesh=mesh) for mesh in meshes)

    @property
    def order(self) -> Schedule:
        """What the schedule needs."""
        return SCHEDULES[self.schedule]

    @property
    def per_rank(self) -> int:
        """Stages of a rank."""
        return self.stages_per_rank or self.order.default_per_rank

    def goes_back_by_stages(self, world_size: int) -> bool:
        """Whether all micro-batches go back through a rank's stage before any goes through one before it."""
        in_one_round = self.micro_batches < 2 * self.sizes(world_size).size("pp")
        return self.order.is_breadth_first or (self.order.in_rounds and in_one_round)

    def layers_of_stages(self, model: Stages, ranks: int, layer_ms: Sequence[float] = ()) -> list[range]:
        """Layers of each stage over *ranks*; where they are cut by time, by what each takes."""
        return cut(model, ranks * self.per_rank, self.split, layer_ms)

    @property
    def later(self) -> str:
        if self.split != "time":
            return ""
        return (
            "split: time: layers are timed at the start of the run and then split into stages; until then, "
            "the layers of each stage and the memory of the largest are unknown"
        )

    @property
    def asked(self) -> dict[str, int]:
        """``mesh`` for those who ask by any name; of all meshes (``auto``) nothing."""
        return asked_by(self.mesh)

    def meshes(self, ranks: int) -> list[Strategy] | None:
        return [replace(self, mesh=mesh) for mesh in every(ranks)] if self.mesh == "auto" else None

    def near_meshes(self, case: Case) -> list[dict[str, int]] | None:
        model = stages_of(case)
        return near(self, model, case.world_size) if model else None

    @property
    def _inside(self) -> dict[str, int]:
        """Dimensions of several ranks inside each place of the pipeline, outermost first."""
        return {name: self.asked[name] for name in INSIDE if self.asked.get(name, 1) > 1}

    @property
    def tensor_parallelism(self) -> TensorParallelism:
        """How layers are cut."""
        return TensorParallelism(self.asked.get("tp", 1), self.sequence_parallel, self.loss_parallel)

    def sizes(self, ranks: int) -> Mesh:
        """The mesh of that many *ranks*."""
        return Mesh.of(self._inside, ranks, "pp")

    def data_ranks(self, ranks: int) -> int:
        mesh = self.sizes(ranks)
        # a mesh that the ranks don't fill is refused for that, not for what its ranks would make of the batch
        return mesh.data_ranks if mesh.ranks == ranks else 1

    def data_rank(self, rank: int, ranks: int) -> int:
        return self.sizes(ranks).data_rank(rank)

    def between(self, model: Stages, ranks: int) -> tuple[int, ...]:
        """Shape of what a rank passes to the next of a sample: under sequence parallelism some positions."""
        cut = self.sizes(ranks).size("tp") if self.sequence_parallel else 1
        return (model.between[0] // cut, *model.between[1:])

    def dimensions(self, ranks: int) -> Mapping[str, int]:
        return self.sizes(ranks).sizes

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = stages_of(case)
        if model is None:
            return uncut(case)
        if reason := mesh_problem(self, case):
            return reason
        ranks = self.sizes(case.world_size).size("pp")
        return (
            stage_problem(self, model, ranks)
            or micro_batch_problem(self, case.batch.micro_batch_size, ranks)
            or recomputation_problem(self, case)
            or not_offered(case, "pipeline parallelism")
            or state_problem(case, "rows" if {"dp_shard", "tp"} & {*self._inside} else "whole", self.label)
        )

    def expected(self, case: Case) -> dict[str, Any]:
        model, mesh = stages_of(case), self.sizes(case.world_size)
        known: dict[str, Any] = {}
        if model and self.split != "time":
            layers = self.layers_of_stages(model, mesh.size("pp"))
            known["layers_of_stages"] = tuple(map(len, layers))
        of_mesh: dict[str, Any] = {f"mesh.{name}": size for name, size in mesh.sizes.items()}
        if "dp_shard" in self._inside:
            of_mesh["reshard_after_forward"] = (self.reshard_after_forward,)
        if "tp" in self._inside:
            of_mesh |= self.tensor_parallelism.expected
        return {
            "schedule": self.schedule,
            "stages": mesh.size("pp") * self.per_rank,
            "micro_batches": self.micro_batches,
            **known,
            **(of_mesh if self.asked else {}),
        }

    def collectives(self, case: Case, parameters: int) -> dict[str, float] | None:
        moved = self.collectives_by_dimension(case, parameters)
        return None if moved is None else by_operation(moved)

    def collectives_by_dimension(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        model = stages_of(case)
        return theory.moved(self, case, model) if model else None

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model = stages_of(case)
        if model is None or self.split == "time":
            return None
        layers = self.layers_of_stages(model, self.sizes(case.world_size).size("pp"))
        return theory.kept(self, case, model, layers)

    def model_states_as_built(
        self, case: Case, parameters: int, effective: Mapping[str, Any]
    ) -> dict[str, float] | None:
        model = stages_of(case)
        if model is None or effective.get("trained_parameters", parameters) != parameters:
            return None
        return theory.kept(self, case, model, ranges(effective["layers_of_stages"]))

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        known = []
        if "dp_shard" in self._inside:
            known.append(Deviation("states", "shards are padded to the same size on every rank"))
        if "dp_shard" in self._inside and self.order.splits_backward:
            # seen in bf16: a stage's more, 2 bytes each
            why = "weight gradients are in the compute dtype before they are accumulated"
            known.append(Deviation("gradients", why))
        if "tp" in self._inside:
            known.append(
                Deviation("gradients", "torch makes the full gradient of a split embedding on each rank")
            )
        if "dp_shard" in self._inside and self.per_rank > ACTIVE:
            why = f"torch keeps at most {ACTIVE} stages of a rank unsharded, and gathers the others again"
            known.append(Deviation("all_gather", why))
        return tuple(known)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.pp.engine import build_pp

        return build_pp(self, setting)
