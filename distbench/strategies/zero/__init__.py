"""``zero``: DeepSpeed's ZeRO stages 0 to 3, with or without offload to CPU memory or NVMe."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, ClassVar, Literal, cast

from distbench.core import meshes
from distbench.core.bounds import Bound, Count, Positive
from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies._deepspeed import DeepSpeedStrategy, ops
from distbench.strategies.base import RankContext, Strategy
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
    RankPasses,
    SettingMeaning,
    strategy_settings,
)
from distbench.strategies.engine import Engine
from distbench.strategies.mesh_strategy import MeshStrategy
from distbench.strategies.theory.pipeline_parallelism import bubble_fraction, pipeline_passes
from distbench.strategies.zero import disk, labels, limits, theory
from distbench.strategies.zero.autotp import AutoTp
from distbench.strategies.zero.pipeline import DEFAULT_MICRO_BATCHES, DeepSpeedPipeline

AioSetting = Literal["block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events"]
"""Key of DeepSpeed's section ``aio``."""
_REPEATED_GATHER = ExcessCause(
    "all_gather",
    "were gathered more than once in a pass, because they were released in between",
    ("max_live_parameters", "max_reuse_distance"),
    # a module releases parameters that another one needs again, and parameters prefetched too early are lost
    ("shared_parameters", "prefetch_bucket_size"),
)
_SHARED_GRADIENT = ExcessCause(
    "gradients",
    "DeepSpeed keeps the full gradient of a parameter that spans two partitions on both ranks",
)
_TUNED = (
    *("sub_group_size", "round_robin_gradients", "contiguous_gradients"),
    *("prescale_gradients", "gradient_predivide_factor"),
)
# more elements than any model has
_MAX_ELEMENTS = 2**53


@dataclass(frozen=True)
class Zero(DeepSpeedStrategy, MeshStrategy):
    """DeepSpeed ZeRO: optimizer state (1), gradients (2) and parameters (3) sharded over ranks."""

    settings: ClassVar[Mapping[str, SettingMeaning]] = {
        **strategy_settings("the strategy itself", "optimizer_wrapper"),
        **strategy_settings(SHARDING, "zero_stage", "param_persistence_threshold", "hpz_partition_size"),
        **strategy_settings(SHARDING, "mics_shard_size"),
        **strategy_settings(SHARDING, "mesh", "split_tensors", "stages", "layers_of_stages"),
        **strategy_settings(
            GRANULARITY, "schedule", "micro_batches", "in_flight", "in_flight_theory", "bubble_theory"
        ),
        **strategy_settings(RESHARDING, "max_live_parameters", "max_reuse_distance", "shared_parameters"),
        **strategy_settings(
            GRANULARITY, "reduce_bucket_size", "allgather_bucket_size", "prefetch_bucket_size"
        ),
        **strategy_settings(GRANULARITY, "contiguous_gradients", "round_robin_gradients"),
        **strategy_settings("where gradients are divided", "prescale_gradients", "gradient_predivide_factor"),
        **strategy_settings(OVERLAP, "overlap_comm", "throughput_timer"),
        **strategy_settings(PLACEMENT, "offload", "on_disk", "aio", "sub_group_size", "nvme_buffer_size"),
        **strategy_settings(PLACEMENT, "pin_memory"),
    }

    stage: Literal[0, 1, 2, 3] = 3
    """What is sharded. 0: nothing (all-reduce, like DDP). 1: optimizer state. 2: and gradients. 3: and
    parameters."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Where the optimizer state is kept and updated: on the device, in CPU memory, or on NVMe."""
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    """Where parameters are kept between uses; stage 3 only."""
    nvme_path: str = ""
    """Folder on the NVMe disk for offload to ``nvme``; each trial uses a subfolder until it ends."""
    optimizer_kernel: Literal["torch", "deepspeed"] = "torch"
    """torch: the suite's own optimizer, as in every other strategy. deepspeed: DeepSpeed's kernel
    (FusedAdam; DeepSpeedCPUAdam with offload), the same algorithm with different rounding."""
    reduce_bucket_size: Annotated[int | None, Bound(1, _MAX_ELEMENTS)] = None
    """Elements per gradient bucket, at least 1. null: the largest layer for models of up to 1e9 parameters,
    and for larger ones DeepSpeed's default, 5e8, which would dwarf a small model."""
    allgather_bucket_size: Annotated[int | None, Bound(1, _MAX_ELEMENTS)] = None
    """Elements per all-gather of parameters in stages 1 and 2, at least 1. null: as for
    ``reduce_bucket_size``."""
    overlap_comm: bool | None = None
    """Overlap the reduction of gradients with the backward pass (stages 1 to 3) and the all-gathers of
    parameters with computation (stage 3). It needs streams, so it has no effect on CPUs. null: DeepSpeed's
    default, true only in stage 3."""
    param_persistence_threshold: Annotated[int | None, Bound(0, _MAX_ELEMENTS)] = None
    """Stage 3 replicates parameters with fewer elements than this. null: 0 for models of up to 1e9
    parameters, so that all are sharded, and for larger ones DeepSpeed's default, 1e5."""
    max_live_parameters: Annotated[int | None, Bound(0, _MAX_ELEMENTS)] = None
    """Stage 3 releases parameters beyond this many elements. null: three times the largest layer, or twice
    that plus a larger embedding, for models of up to 1e9 parameters, and for larger ones DeepSpeed's default,
    1e9, which would keep a small model unsharded between forward and backward."""
    max_reuse_distance: Annotated[int | None, Bound(0, _MAX_ELEMENTS)] = None
    """Stage 3 keeps a parameter that is needed again within this many elements of computation. null: 0 for
    models of up to 1e9 parameters, and for larger ones DeepSpeed's default, 1e9."""
    prefetch_bucket_size: Annotated[int | None, Bound(0, _MAX_ELEMENTS)] = None
    """Elements that stage 3 prefetches. null: the largest layer for models of up to 1e9 parameters, and for
    larger ones DeepSpeed's default, 5e7."""
    hpz_partition_size: Count = field(default=1, metadata={"since": 4})
    """Number of neighbouring ranks that share a secondary copy of the parameters in stage 3, such as the
    devices of a node: the backward pass all-gathers inside this group, not over all ranks (hpZ of ZeRO++,
    arXiv:2306.10209). 1: no secondary copy."""
    mics_shard_size: Count = field(default=1, metadata={"since": 4})
    """Number of neighbouring ranks over which stage 3 shards all model states, with a replica in each such
    group (MiCS, arXiv:2205.00119; DeepSpeed up to 0.19.6). 1: shard over all ranks."""
    quantized_weights: bool = field(default=False, metadata={"since": 4})
    """All-gather parameters quantized to 8 bits in stage 3 (qwZ of ZeRO++)."""
    quantized_gradients: bool = field(default=False, metadata={"since": 4})
    """Reduce gradients quantized to 4 bits in stage 3 (qgZ of ZeRO++)."""
    grad_accum_dtype: Literal["fp32", "bf16"] = field(default="fp32", metadata={"since": 4})
    """Dtype in which stages 1 to 3 accumulate gradients. fp32: that of the master weights, as every other
    strategy does. bf16: with precision: bf16, DeepSpeed's own default, which takes half the memory and is not
    the same work. Stage 0 always accumulates in the dtype of the parameters."""
    mesh: dict[Literal["pp", "tp"], Count] | Literal["auto"] = field(
        default_factory=dict, metadata={"since": 4}
    )
    """{tp: 2} splits the linear layers of every block across pairs of neighbouring ranks, which process the
    same samples, with ZeRO across the others: DeepSpeed's AutoTP, in stages 0 to 2. {pp: 2} makes a pipeline
    of two stages: DeepSpeed's PipelineModule, in stages 0 and 1. auto: a case for every size of either that
    fits the world size and the model (for pp, if micro_batches divides the micro-batch)."""
    micro_batches: Count = field(default=DEFAULT_MICRO_BATCHES, metadata={"since": 4})
    """With mesh: {pp: N}, number of parts into which the pipeline splits each micro-batch of the suite; it
    must divide its size, and may be smaller than N."""
    pin_memory: bool = field(default=True, metadata={"since": 4})
    """Lock offloaded states in memory, so that transfers to a GPU run beside its work. CPUs never do."""
    sub_group_size: Annotated[int | None, Bound(1, _MAX_ELEMENTS)] = field(
        default=None, metadata={"since": 4}
    )
    """Elements of a rank that stage 3 updates at once. null: DeepSpeed's default, 1e9, or with the optimizer
    on NVMe the largest layer."""
    round_robin_gradients: bool = field(default=False, metadata={"since": 4})
    """Deal parameters out to the partitions of stages 1 and 2 in turn, so that gradients that are reduced one
    after another belong to different ranks, which copy them to the CPU side by side."""
    contiguous_gradients: bool = field(default=True, metadata={"since": 4})
    """Copy gradients into one buffer before they are reduced (stages 1 to 3). DeepSpeed always does with the
    optimizer offloaded in stages 1 and 2."""
    prescale_gradients: bool = field(default=False, metadata={"since": 4})
    """Divide gradients by the number of ranks before stage 0 reduces them, not after."""
    gradient_predivide_factor: Positive = field(default=1.0, metadata={"since": 4})
    """Divide gradients by this before stage 0 reduces them, and by the rest of the ranks after."""
    aio: dict[AioSetting, Count | bool] = field(default_factory=dict, metadata={"since": 4})
    """Requests to the disk of offload to ``nvme``: block_size (bytes), queue_depth, intra_op_parallelism
    (threads), single_submit, overlap_events. What is missing is DeepSpeed's default."""

    def __post_init__(self) -> None:
        # an id of a case contains options that follow from the stage alone: null would hide that two do the
        # same
        decided: dict[str, int] = {"overlap_comm": self.stage == 3}
        if self.stage != 3:
            decided |= {"param_persistence_threshold": 0, "max_reuse_distance": 0}
        for option, value in decided.items():
            if getattr(self, option) is None:
                object.__setattr__(self, option, value)
        self.drop_dimensions_of_one_rank()

    def canonical(self, case: Case) -> Strategy:
        # pinned memory speeds up copies to a GPU
        pins = self.pin_memory or case.device == "cpu"
        return replace(cast(Zero, super().canonical(case)), pin_memory=pins)

    @property
    def engine_class(self) -> str:
        return "DeepSpeedEngine" if self.pipeline is None else "PipelineEngine"

    @property
    def label(self) -> str:
        return labels.zero_label(self)

    @property
    def card(self) -> Card:
        if self.model_parallelism.ranks > 1:
            return built_in_card("zero-tp" if self.pipeline is None else "zero-pp")
        if self.mics_shard_size > 1:
            return built_in_card("zero-mics")
        name = "zero-hpz" if self.hpz_partition_size > 1 else f"zero-{self.stage}"
        return built_in_card(name, *(["zero-offload"] if self.offloads else []))

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (
            cls(stage=0),
            cls(stage=1),
            cls(stage=2),
            cls(),
            cls(hpz_partition_size=2),
            cls(mics_shard_size=2),
            cls(stage=1, mesh={"tp": 2}),
            cls(stage=1, mesh={"pp": 2}),
        )

    @property
    def simplicity(self) -> int:
        if self.model_parallelism.ranks > 1:
            return SIMPLICITY_OF_MODEL_PARALLELISM + 25 + self.stage
        in_groups = max(self.hpz_partition_size, self.mics_shard_size) > 1
        return 40 + self.stage + in_groups

    @property
    def offloads(self) -> tuple[str, ...]:
        return tuple(place for place in (self.offload_optimizer, self.offload_parameters) if place != "none")

    @property
    def leftovers(self) -> tuple[str, ...]:
        return (*super().leftovers, *(disk.leftovers(self.offload_folder) if self.offload_folder else ()))

    @property
    def offload_folder(self) -> str:
        return self.nvme_path if "nvme" in self.offloads else ""

    @property
    def excess_causes(self) -> tuple[ExcessCause, ...]:
        if self.stage == 0:
            return ()
        return (_REPEATED_GATHER,) if self.stage == 3 else (_SHARED_GRADIENT,)

    @property
    def operations_on_frozen(self) -> Collection[str] | None:
        if self.model_parallelism.ranks > 1 or self.offloads:
            return None
        # up to stage 2 only updated parameters are gathered
        return ("all_gather",) if self.stage == 3 else ()

    def accumulates_in_other_dtype(self, case: Case) -> bool:
        """True if gradients of *case* are accumulated in another dtype than they are computed in."""
        return self.stage > 0 and self.grad_accum_dtype != case.precision.compute

    @property
    def tuned_options(self) -> dict[str, Any]:
        """Options on updates and reductions that are not DeepSpeed's own, by which engines name them."""
        usual = {field.name: field.default for field in fields(self) if field.name in _TUNED}
        return {name: value for name in usual if (value := getattr(self, name)) != usual[name]}

    @property
    def tensor_parallelism(self) -> AutoTp:
        """AutoTP of the layers, over one device without ``tp``."""
        return AutoTp(self.requested_mesh.get("tp", 1))

    @property
    def pipeline(self) -> DeepSpeedPipeline | None:
        """Pipeline of the layers; None without ``pp``."""
        stages = self.requested_mesh.get("pp", 1)
        return DeepSpeedPipeline(stages, self.micro_batches) if stages > 1 else None

    @property
    def model_parallelism(self) -> AutoTp | DeepSpeedPipeline:
        """Division of the model over ranks that share samples."""
        return self.pipeline or self.tensor_parallelism

    @property
    def rest_dimension(self) -> str:
        return "dp_shard" if self.stage else "dp_replicate"

    def problem(self, case: Case, machine: Machine) -> str | None:
        return limits.zero_problem(self, case, machine) or self.toolchain_problem(case, machine)

    def imports(self, case: Case) -> tuple[str, ...]:
        staged = ("distbench.strategies.zero.pipeline_engine",) if self.pipeline else ()
        return (*super().imports(case), *staged)

    def op_builders(self, case: Case) -> list[str]:
        return [
            *super().op_builders(case),
            *ops.BUILDERS_BY_KERNEL.get(self.optimizer_class(case)[1], []),
            # which it loads itself
            *(["PinMemoryBuilder", "AsyncIOBuilder"] if "nvme" in self.offloads else []),
        ]

    def optimizer_class(self, case: Case) -> tuple[str, str]:
        if self.optimizer_kernel == "torch":
            return super().optimizer_class(case)
        if self.offload_optimizer != "none" or case.device == "cpu":
            return "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam", "DeepSpeedCPUAdam"
        return "deepspeed.ops.adam.fused_adam.FusedAdam", "FusedAdam"

    def known_sizes(self, ranks: int) -> dict[str, int]:
        if (shards := self.mics_shard_size) > 1:
            return {"dp_replicate": max(1, ranks // shards), "dp_shard": shards}
        return self.requested_mesh

    def mesh_variants(self, ranks: int) -> list[Strategy] | None:
        if self.mesh != "auto":
            return None
        sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
        cut = [replace(self, mesh={"tp": size}, micro_batches=DEFAULT_MICRO_BATCHES) for size in sizes]
        return [*cut, *(replace(self, mesh={"pp": size}) for size in sizes if size > 1)]

    def nearest_meshes(self, case: Case) -> list[dict[str, int]] | None:
        asked, ranks = self.requested_mesh, case.world_size
        return (
            meshes.alternatives_if_invalid(asked, ranks, self.rest_dimension, (self.rest_dimension, *asked))
            if len(asked) == 1
            else None
        )

    def traffic(self, case: Case, parameters: int) -> list[ExpectedCollective]:
        return theory.zero_traffic(self, case, parameters)

    def rank_passes(self, case: Case) -> RankPasses | None:
        whole = super().rank_passes(case)
        if whole is None or self.pipeline is None:
            return whole
        ranks, parts = self.pipeline.ranks, self.pipeline.micro_batches
        return pipeline_passes(whole, ranks, parts, bubble_fraction(ranks, parts))

    def disk_traffic(self, case: Case, parameters: int) -> dict[str, float] | None:
        return disk.disk_traffic(self, case, parameters) if self.offload_folder else None

    def required_settings(self, case: Case) -> dict[str, Any]:
        places = {"offload.optimizer": self.offload_optimizer, "offload.parameters": self.offload_parameters}
        groups = ("hpz_partition_size", "mics_shard_size")
        own: dict[str, Any] = {option: size for option in groups if (size := getattr(self, option)) > 1}
        if self.accumulates_in_other_dtype(case):
            own["dtypes.gradients"] = self.grad_accum_dtype
        own |= self.tuned_options | {f"aio.{key}": value for key, value in self.aio.items()}
        if self.offloads:
            own["pin_memory"] = self.pin_memory and case.device == "cuda"
        of_mesh = self.mesh_settings(case.world_size) if self.model_parallelism.ranks > 1 else {}
        return places | own | of_mesh | (self.pipeline.required_settings(case) if self.pipeline else {})

    def build(self, context: RankContext) -> Engine:
        if self.offload_folder:
            from distbench.strategies.zero.nvme import build_nvme

            return build_nvme(self, context)
        if self.pipeline:
            from distbench.strategies.zero.pipeline_engine import build_pipeline

            return build_pipeline(self, self.pipeline, context)
        from distbench.strategies.zero.engine import build_zero

        return build_zero(self, context)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        return None if "nvme" in self.offloads else theory.zero_model_states(self, case, parameters)
