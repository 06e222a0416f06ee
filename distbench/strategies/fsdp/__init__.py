"""``fsdp``: torch's fully sharded data parallelism, FSDP2 (``fully_shard``) or the older FSDP1."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from distbench.core.bounds import Bound, Count
from distbench.core.case import Case
from distbench.core.dtypes import DTYPE_BYTES
from distbench.core.machine import Machine
from distbench.strategies import _in_backward
from distbench.strategies.base import TORCH_CHECKPOINT, RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.description import (
    GRANULARITY,
    OVERLAP,
    PLACEMENT,
    RESHARDING,
    SHARDING,
    SIMPLICITY_OF_MODEL_PARALLELISM,
    ExcessCause,
    ExpectedCollective,
    SettingMeaning,
    TracedStep,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.fsdp.limits import fsdp_problem
from distbench.strategies.fsdp.mesh import (
    DIMENSIONS,
    REST_DIMENSION,
    MeshDimension,
    all_meshes,
    canonical_mesh,
    hybrid_sizes,
    replica_label,
)
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.strategies.theory.data_parallelism import FULLY_SHARDED, ShardingLevel
from distbench.strategies.theory.pipeline_parallelism import stages_of
from distbench.strategies.theory.sharded_units import ShardedUnits, padded_parameters
from distbench.strategies.theory.tensor_parallelism import TensorParallelism
from distbench.workloads.base import workload_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


# the more is sharded, and the more groups there are, the harder it is to understand
_SIMPLICITY = {"grad_op": 32, "full": 33, "hybrid": 34}

_UNIT_OPTIONS = ("layers_per_unit", "forward_prefetch", "backward_prefetch")

_UNEVEN = ExcessCause(
    "optimizer_state",
    "shards contain frozen and trained parameters alike, so some ranks have more trained parameters",
)


@dataclass(frozen=True)
class FullyShardedDataParallel(MeshStrategy):
    """FSDP: parameters, gradients and optimizer state sharded over ranks, wrapped layer by layer."""

    early_imports = ("distbench.strategies.fsdp.fsdp2",)
    option_dimensions = DIMENSIONS
    rest_dimension = REST_DIMENSION
    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings(
            SHARDING, "units", "unit_classes", "merged_units", "mesh", "placements", "sharding_strategy"
        ),
        **strategy_settings(SHARDING, "split_tensors", "gathered_parameters", "reduced_parameters"),
        **strategy_settings(GRANULARITY, "sequence_parallel", "loss_parallel", "layers_per_unit"),
        **strategy_settings(RESHARDING, "reshard_after_forward", "reshard_root"),
        **strategy_settings(OVERLAP, "reduce_each_micro_batch", "forward_prefetch", "backward_prefetch"),
        **strategy_settings(PLACEMENT, "cpu_offload"),
        **strategy_settings(_in_backward.UPDATE_TIMING, _in_backward.OPTION),
    }

    version: Literal[1, 2] = 2
    """2: ``fully_shard`` (FSDP2). 1: ``FullyShardedDataParallel`` (FSDP1, superseded)."""
    sharding: Literal["full", "grad_op", "hybrid"] = "full"
    """full: parameters are all-gathered again for the backward pass (ZeRO-3). grad_op: they stay
    unsharded from forward to backward (ZeRO-2). hybrid: sharded inside groups, replicated across them."""
    replicas: Count = 2
    """With sharding: hybrid, number of model replicas, at least 1; each is sharded over world size / replicas
    ranks."""
    shards: Count | None = field(default=None, metadata={"since": 4})
    """With sharding: hybrid, ranks per replica, whatever the world size, such as the devices of a node;
    there are world size / shards replicas. null: use replicas."""
    cpu_offload: bool = False
    """Keep parameters, gradients and optimizer state on the CPU."""
    reshard_root: bool = False
    """Reshard the root's parameters (embedding, head) after forward too; they are needed first in the
    backward pass, so torch keeps them unsharded by default. FSDP2 only."""
    reduce_each_micro_batch: bool = True
    """Reduce-scatter after every micro-batch. false: accumulate unsharded gradients and reduce once per
    step."""
    mesh: dict[MeshDimension, Count] | Literal["auto"] = field(default_factory=dict, metadata={"since": 4})
    """Sizes of the device mesh; dp_shard defaults to the rest of the world size. {tp: 2} splits every layer
    across pairs of neighbouring ranks, which process the same samples (2D parallelism); {dp_replicate: 2}
    keeps two replicas of the model, like sharding: hybrid, but with any sharding. auto: a case for every mesh
    that fits the world size and the model. FSDP2 only."""
    sequence_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, also split the activations between layers, as the strategy tp does."""
    loss_parallel: bool = field(default=False, metadata={"since": 4})
    """With mesh: {tp: N}, compute the loss from logits that stay split by class."""
    optimizer_in_backward: bool = field(default=False, metadata={"since": 4})
    """Update each shard as soon as its gradient is reduced, and free the gradient: only those of one layer
    exist at once. Not with clipping, gradient accumulation or a loss scale. FSDP2 only."""
    layers_per_unit: Count = field(default=1, metadata={"since": 4})
    """Consecutive layers that are gathered and reduced as one unit: fewer and larger messages, and more
    unsharded parameters at once. The last unit has the layers that are left. FSDP2 only."""
    forward_prefetch: Annotated[int, Bound(0)] = field(default=0, metadata={"since": 4})
    """Units of layers whose all-gathers a unit begins before its own forward pass; 0: torch's default, each
    begins its own. FSDP2 only (set_modules_to_forward_prefetch)."""
    backward_prefetch: Annotated[int, Bound(0)] = field(default=0, metadata={"since": 4})
    """Units of layers whose all-gathers a unit begins before its own backward pass; 0: torch's default, the
    one that ran before it. FSDP2 only (set_modules_to_backward_prefetch)."""

    def __post_init__(self) -> None:
        self.drop_dimensions_of_one_rank()

    @property
    def engine_class(self) -> str:
        return "FSDPModule" if self.version == 2 else "FullyShardedDataParallel"

    @property
    def label(self) -> str:
        name = "fsdp1" if self.version == 1 else "fsdp"
        if self.sharding != "full":
            name += f"-{self.sharding.replace('_', '-')}"
        name += replica_label(self)
        split = (
            [f"tp{self.requested_mesh['tp']}", *self.tensor_parallelism.label_parts]
            if self.has_tensor_parallelism
            else []
        )
        more = {"offload": self.cpu_offload, _in_backward.LABEL: self.optimizer_in_backward}
        return "+".join([name, *split, *(word for word, is_on in more.items() if is_on)])

    @property
    def card(self) -> Card:
        is_hybrid = self.sharding == "hybrid" or bool(self.requested_mesh.get("dp_replicate"))
        if self.has_tensor_parallelism:
            return built_in_card("fsdp-hybrid_tp" if is_hybrid else "fsdp-tp")
        if self.optimizer_in_backward:
            return built_in_card("fsdp-in_backward")
        return built_in_card("fsdp-hybrid" if is_hybrid else f"fsdp-{self.sharding}")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        ways = cls(), cls(sharding="grad_op"), cls(sharding="hybrid")
        return (
            *ways,
            cls(optimizer_in_backward=True),
            cls(mesh={"tp": 2}),
            cls(mesh={"dp_replicate": 2, "tp": 2}),
        )

    @property
    def simplicity(self) -> int:
        # version 1 is superseded: it comes after its successor and every stage of ZeRO
        more = 2 if self.requested_mesh.get("dp_replicate") else 0
        more += (
            SIMPLICITY_OF_MODEL_PARALLELISM - 15
            if self.has_tensor_parallelism
            else 1
            if self.optimizer_in_backward
            else 0
        )
        return _SIMPLICITY[self.sharding] + more + (15 if self.version == 1 else 0)

    @property
    def checkpoint_format(self) -> str:
        return TORCH_CHECKPOINT if self.version == 2 else ""

    @property
    def offloads(self) -> tuple[str, ...]:
        return ("cpu",) if self.cpu_offload else ()

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        padded = ExcessCause("states", "shards are padded to the same size on every rank")
        return (padded, _UNEVEN) if self.version == 1 else (padded,)

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        is_linear = not (self.has_tensor_parallelism or self.optimizer_in_backward)
        return ("all_gather",) if is_linear else None

    def wrapped_layer_classes(self, effective: Mapping[str, Any]) -> list[str]:
        if self.version == 1:
            # it reports the root's class too, but not which one it is
            return []
        # FSDP2 prefixes class names with its own; the engine it reports is the root's class
        units = [str(name) for name in effective.get("unit_classes") or [] if name != effective.get("engine")]
        classes = [name.removeprefix("FSDP") for name in units]
        return [] if "CheckpointWrapper" in classes else classes

    def known_sizes(self, ranks: int) -> dict[str, int]:
        return self.requested_mesh | hybrid_sizes(self, ranks)

    def all_meshes(self, ranks: int) -> list[dict[MeshDimension, int]]:
        return all_meshes(ranks)

    @property
    def tensor_parallelism(self) -> TensorParallelism:
        """Tensor parallelism inside the layers."""
        return TensorParallelism(self.requested_mesh.get("tp", 1), self.sequence_parallel, self.loss_parallel)

    @property
    def has_tensor_parallelism(self) -> bool:
        """True if several ranks share samples."""
        return self.tensor_parallelism.ranks > 1

    def init_mesh(self, context: RankContext) -> DeviceMesh:
        """The mesh of live ranks. Collective call."""
        from distbench.strategies.torch_engine import device_meshes

        return device_meshes.init_mesh(self.mesh_sizes(context.world_size), context.device)

    def canonical(self, case: Case) -> Strategy:
        return canonical_mesh(self, case.world_size)

    def problem(self, case: Case, machine: Machine) -> str | None:
        return fsdp_problem(self, case, machine)

    def required_settings(self, case: Case) -> dict[str, Any]:
        own: dict[str, Any] = {_in_backward.OPTION: True} if self.optimizer_in_backward else {}
        if self.version == 2:
            own |= {key: getattr(self, key) for key in _UNIT_OPTIONS}
        if self.requested_mesh:
            own |= self.mesh_settings(case.world_size)
        return own | (self.tensor_parallelism.required_settings if self.has_tensor_parallelism else {})

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        # Zhao et al. 2023 (arXiv 2304.11277): all-gathered for the forward pass and, if resharded after it,
        # for the backward pass; gradients reduce-scattered inside a group of shards, and the resulting shards
        # all-reduced across the replicas
        over, mesh = self.tensor_parallelism, self.mesh_sizes(case.world_size)
        micro, units = case.batch.gradient_accumulation_steps, self._units(case)
        moved = (units or self._sharding_level).traffic(
            case,
            over.parameters_per_rank(case, parameters),
            shards=mesh["dp_shard"],
            replicas=mesh.get("dp_replicate", 1),
        )
        # FSDP sums tensor parallelism's partial gradients before it scatters them, in each micro-batch
        norms = micro * DTYPE_BYTES[case.precision.compute]
        samples = case.batch.global_batch_size // self.data_parallel_size(case.world_size)
        inside = over.traffic(case, samples, norms, reductions=micro)
        # some of them follow those of FSDP
        return [*moved, *(replace(one, synchronizations=None) for one in inside)]

    @property
    def _sharding_level(self) -> ShardingLevel:
        """Level of ``sharding``, with the reductions that ``reduce_each_micro_batch`` leaves."""
        return replace(
            FULLY_SHARDED,
            gather_frequency=self._gather_frequency,
            reduce_frequency="micro_batch" if self.reduce_each_micro_batch else "step",
        )

    @property
    def _gather_frequency(self) -> Literal["step", "micro_batch", "pass"]:
        """Frequency at which parameters are gathered."""
        if self.sharding != "grad_op":
            return "pass"
        # FSDP1 also keeps them from one backward pass to the next forward pass if it does not reduce
        return "step" if self.version == 1 and not self.reduce_each_micro_batch else "micro_batch"

    def _units(self, case: Case) -> ShardedUnits | None:
        """Units that are gathered one by one; None: unknown without the model."""
        if (layers := self.layer_count(case)) is None:
            return None
        return ShardedUnits(
            -(-layers // self.layers_per_unit),
            self._sharding_level,
            reshards_root=self.reshard_root,
            pads_rows=self.version == 2,
            is_in_order=not (self.forward_prefetch or self.backward_prefetch),
            is_split=self.has_tensor_parallelism,
        )

    def layer_count(self, case: Case) -> int | None:
        """Layers of the model of *case*; None: unknown without the model."""
        workload = workload_of(case)
        if known := workload.layer_shapes():
            return len(known.layers)
        # a plan of fully sharded cases is not worth a process that constructs the model
        model = None if workload.reads_model else stages_of(case)
        return len(model.layer_parameters) if model else None

    def traced_step(self, case: Case) -> TracedStep | str:
        if self.version == 1:
            return "version = 1: FSDP1 reads the values of its parameters, and a trace has none"
        if self.cpu_offload:
            return "cpu_offload: a trace does not tell the memory of the host from that of a device"
        return TracedStep(case)

    def build(self, context: RankContext) -> Engine:
        if self.version == 1:
            from distbench.strategies.fsdp.fsdp1 import build_fsdp1

            return build_fsdp1(self, context)
        from distbench.strategies.fsdp.fsdp2 import build_fsdp2

        return build_fsdp2(self, context)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        over = self.mesh_sizes(case.world_size)["dp_shard"]
        parameters = self.tensor_parallelism.parameters_per_rank(case, parameters)
        padded = padded_parameters(case, parameters, over) if self.version == 2 else parameters
        sizes = FULLY_SHARDED.model_states(case, padded, over)
        if case.batch.gradient_accumulation_steps > 1 and not self.reduce_each_micro_batch:
            # full gradients are kept until the last micro-batch, in FSDP1 in the dtype of the backward pass
            whole = case.precision.compute if self.version == 1 else case.precision.reduce
            sizes["gradients"] = max(sizes["gradients"], parameters * DTYPE_BYTES[whole])
        if self.optimizer_in_backward:
            largest = _in_backward.largest_layer_gradient_bytes(case, parameters)
            return _in_backward.with_gradient_bytes(sizes, largest and largest / over)
        return sizes
