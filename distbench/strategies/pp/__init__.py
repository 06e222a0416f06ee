"""``pp``: pipeline parallelism of torch, the layers in stages on one rank after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from distbench.core.bounds import Count
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    RESHARDING,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    ExcessCause,
    ExpectedCollective,
    RankPasses,
    SettingMeaning,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.strategies.pp import theory
from distbench.strategies.pp.cuts import SplitBy, ranges_from_sizes, split_layers
from distbench.strategies.pp.inner_dimensions import (
    INNER_DIMENSIONS,
    all_meshes,
    label_parts,
    mesh_problem,
    nearest_meshes,
)
from distbench.strategies.pp.inner_dimensions import MeshDimension as MeshName
from distbench.strategies.pp.limits import micro_batch_problem, recomputation_problem, stage_problem
from distbench.strategies.pp.schedules import (
    MAX_UNSHARDED_STAGES,
    SCHEDULES,
    ScheduleName,
    ScheduleRules,
    schedule_bubble,
)
from distbench.strategies.requirements import optimizer_problem, transform_problem
from distbench.strategies.theory.pipeline_parallelism import pipeline_passes, stages_of, undeclared_stages
from distbench.strategies.theory.tensor_parallelism import TensorParallelism
from distbench.workloads.stages import PipelineStages


@dataclass(frozen=True)
class PipelineParallel(MeshStrategy):
    """Pipeline parallelism: layers in stages on consecutive ranks, each working on another micro-batch."""

    engine_class = "PipelineEngine"
    checkpoint_format = TORCH_CHECKPOINT
    rest_dimension = "pp"
    early_imports = ("distbench.strategies.pp.engine",)
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(
            SHARDING, "stages", "layers_of_stages", "mesh", "placements", "units", "split_tensors"
        ),
        **strategy_settings("the measured times of its layers, which define the stages", "layer_ms"),
        **strategy_settings(
            GRANULARITY, "schedule", "micro_batches", "in_flight", "in_flight_theory", "bubble_theory"
        ),
        **strategy_settings(GRANULARITY, "sequence_parallel", "loss_parallel", "bucket_bytes_cap"),
        **strategy_settings(RESHARDING, "reshard_after_forward"),
    }

    schedule: ScheduleName = "1F1B"
    """Order of forward and backward passes, by torch's names. GPipe and 1F1B have one stage per rank;
    Interleaved1F1B, LoopedBFS and InterleavedZeroBubble several; ZBVZeroBubble and DualPipeV two, one from
    the front and one from the back."""
    micro_batches: Count = 4
    """Number of parts into which the pipeline splits each micro-batch of the suite; it must divide its
    size."""
    stages_per_rank: Count | None = None
    """Stages per rank. null: the minimum for the schedule, 1 or 2."""
    split: SplitBy = "count"
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
        self.drop_dimensions_of_one_rank()

    @property
    def label(self) -> str:
        name = "pp" if self.schedule == "1F1B" else f"pp-{self.schedule.lower()}"
        return "+".join([name, *label_parts(self)])

    @property
    def simplicity(self) -> int:
        # after tensor parallelism: the training loop itself differs; each dimension adds complexity
        return (
            SIMPLICITY_OF_MODEL_PARALLELISM
            + 30
            + list(SCHEDULES).index(self.schedule)
            + 10 * len(self._inner_mesh)
        )

    @property
    def card(self) -> Card:
        inside = [*self._inner_mesh]
        if {"dp_replicate", "dp_shard"} <= {*inside}:
            # one addition for both, which are the outermost
            inside[:2] = ["hybrid"]
        return built_in_card("pp", *(f"pp-{name}" for name in (self.schedule, *inside)))

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
    def schedule_rules(self) -> ScheduleRules:
        """Rules of the schedule."""
        return SCHEDULES[self.schedule]

    @property
    def stages_on_rank(self) -> int:
        """Number of stages per rank."""
        return self.stages_per_rank or self.schedule_rules.default_stages_per_rank

    def backward_finishes_stage_by_stage(self, world_size: int) -> bool:
        """True if all micro-batches finish a rank's stage in backward before any enters its previous one."""
        in_one_round = self.micro_batches < 2 * self.device_mesh(world_size).size("pp")
        return self.schedule_rules.is_breadth_first or (self.schedule_rules.runs_in_rounds and in_one_round)

    def split_layers(self, model: PipelineStages, ranks: int, layer_ms: Sequence[float] = ()) -> list[range]:
        """Layers of each stage over *ranks*; *layer_ms* is used if they are split by time."""
        return split_layers(model, ranks * self.stages_on_rank, self.split, layer_ms)

    @property
    def undetermined(self) -> str:
        if self.split != "time":
            return ""
        return (
            "split: time assigns layers to stages after timing them at the start of the run; until "
            "then, the layers of each stage and the memory of the largest are unknown"
        )

    def all_meshes(self, ranks: int) -> list[dict[MeshName, int]]:
        return all_meshes(ranks)

    def nearest_meshes(self, case: Case) -> list[dict[str, int]] | None:
        model = stages_of(case)
        return nearest_meshes(self, model, case.world_size) if model else None

    @property
    def _inner_mesh(self) -> dict[str, int]:
        """Dimensions with several ranks inside each pipeline rank, outermost first."""
        return {
            name: self.requested_mesh[name]
            for name in INNER_DIMENSIONS
            if self.requested_mesh.get(name, 1) > 1
        }

    @property
    def tensor_parallelism(self) -> TensorParallelism:
        """Tensor parallelism inside the layers."""
        return TensorParallelism(self.requested_mesh.get("tp", 1), self.sequence_parallel, self.loss_parallel)

    def known_sizes(self, ranks: int) -> dict[str, int]:
        return self._inner_mesh

    def data_parallel_size(self, ranks: int) -> int:
        mesh = self.device_mesh(ranks)
        # a mesh that the ranks don't fill is refused for that, not for its effect on the batch
        return mesh.data_ranks if mesh.world_size == ranks else 1

    def activation_shape(self, model: PipelineStages, ranks: int) -> tuple[int, ...]:
        """Shape of the activations of a sample sent to the next rank; split if sequence-parallel."""
        cut = self.device_mesh(ranks).size("tp") if self.sequence_parallel else 1
        return (model.activation_shape[0] // cut, *model.activation_shape[1:])

    def problem(self, case: Case, machine: Machine) -> str | None:
        model = stages_of(case)
        if model is None:
            return undeclared_stages(case)
        if reason := mesh_problem(self, case):
            return reason
        ranks = self.device_mesh(case.world_size).size("pp")
        return (
            stage_problem(self, model, ranks)
            or micro_batch_problem(self, case.batch.micro_batch_size, ranks)
            or recomputation_problem(self, case)
            or transform_problem(case, "pipeline parallelism")
            or optimizer_problem(
                case, "rows" if {"dp_shard", "tp"} & {*self._inner_mesh} else "whole", self.label
            )
        )

    def required_settings(self, case: Case) -> dict[str, Any]:
        model, mesh = stages_of(case), self.device_mesh(case.world_size)
        known: dict[str, Any] = {}
        if model and self.split != "time":
            layers = self.split_layers(model, mesh.size("pp"))
            known["layers_of_stages"] = tuple(map(len, layers))
        of_mesh: dict[str, Any] = self.mesh_settings(case.world_size)
        if "dp_shard" in self._inner_mesh:
            of_mesh["reshard_after_forward"] = (self.reshard_after_forward,)
        if "tp" in self._inner_mesh:
            of_mesh |= self.tensor_parallelism.required_settings
        return {
            "schedule": self.schedule,
            "stages": mesh.size("pp") * self.stages_on_rank,
            "micro_batches": self.micro_batches,
            **known,
            **(of_mesh if self.requested_mesh else {}),
        }

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective] | None:
        model = stages_of(case)
        return theory.pipeline_traffic(self, case, model) if model else None

    def rank_passes(self, case: Case) -> RankPasses | None:
        ranks, whole = self.device_mesh(case.world_size).size("pp"), super().rank_passes(case)
        idle = schedule_bubble(self.schedule, ranks, self.micro_batches, self.stages_on_rank)
        return whole and pipeline_passes(whole, ranks, self.micro_batches, idle)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        model = stages_of(case)
        if model is None or self.split == "time":
            return None
        layers = self.split_layers(model, self.device_mesh(case.world_size).size("pp"))
        return theory.pipeline_model_states(self, case, model, layers)

    def model_states_as_built(
        self, case: Case, parameters: int, effective: Mapping[str, Any]
    ) -> dict[str, float] | None:
        model = stages_of(case)
        if model is None or effective.get("trained_parameters", parameters) != parameters:
            return None
        return theory.pipeline_model_states(
            self, case, model, ranges_from_sizes(effective["layers_of_stages"])
        )

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        known = []
        if "dp_shard" in self._inner_mesh:
            known.append(ExcessCause("states", "shards are padded to the same size on every rank"))
        if "dp_shard" in self._inner_mesh and self.schedule_rules.splits_backward:
            # observed in bf16: the gradients of one more stage, 2 bytes each
            why = "weight gradients are in the compute dtype before they are accumulated"
            known.append(ExcessCause("gradients", why))
        if "tp" in self._inner_mesh:
            known.append(
                ExcessCause("gradients", "torch computes the full gradient of a split embedding on each rank")
            )
        if "dp_shard" in self._inner_mesh and self.stages_on_rank > MAX_UNSHARDED_STAGES:
            most = MAX_UNSHARDED_STAGES
            why = f"torch keeps at most {most} stages of a rank unsharded, and gathers the others again"
            known.append(ExcessCause("all_gather", why))
        return tuple(known)

    def build(self, context: RankContext) -> Engine:
        from distbench.strategies.pp.engine import build_pp

        return build_pp(self, context)
