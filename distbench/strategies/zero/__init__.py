"""``zero``: DeepSpeed's ZeRO stages 0 to 3, with or without offload to CPU memory or NVMe."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from distbench.bounds import Bound
from distbench.case import BYTES, Case
from distbench.env import Machine, ops_folder, packages
from distbench.optimizers import Cut
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import (
    KEEPING,
    PLACE,
    PORTIONS,
    SHARDING,
    TIMING,
    Card,
    Deviation,
    Meaning,
    points,
)
from distbench.strategies.zero import disk, ops
from distbench.strategies.zero.card import card as card_of

_GATHERED_TWICE = Deviation(
    "all_gather",
    "were gathered more than once in a pass, released in between",
    ("max_live_parameters", "max_reuse_distance"),
    # a module releases what another one needs again, and what was prefetched too early is lost
    ("shared_parameters", "prefetch_bucket_size"),
)
_IN_TWO_PARTITIONS = Deviation(
    "gradients",
    "DeepSpeed keeps the gradient of a parameter that lies in two partitions whole on both ranks",
)
# more elements than any model has
_MOST = 2**53
# what deepspeed.initialize would import in every rank of every trial
_IMPORTS = (
    "deepspeed",
    "deepspeed.module_inject.auto_ep_layer",
    "deepspeed.runtime.superoffload.superoffload_stage3",
    "deepspeed.runtime.zero.muon.original_muon",
    "torch._inductor.compile_fx",
    "distbench.strategies.zero.engine",
)


@dataclass(frozen=True)
class Zero(Strategy):
    """DeepSpeed ZeRO: optimizer state (1), gradients (2) and parameters (3) sharded over ranks."""

    engine = "DeepSpeedEngine"
    packages = ("torch", "deepspeed")
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points("the strategy itself", "optimizer_wrapper"),
        **points(SHARDING, "zero_stage", "param_persistence_threshold"),
        **points(KEEPING, "max_live_parameters", "max_reuse_distance", "shared_parameters"),
        **points(PORTIONS, "reduce_bucket_size", "allgather_bucket_size", "prefetch_bucket_size"),
        **points(TIMING, "overlap_comm", "throughput_timer"),
        **points(PLACE, "offload", "on_disk", "aio", "sub_group_size", "nvme_buffer_size"),
    }

    stage: Literal[0, 1, 2, 3] = 3
    """0: nothing sharded (all-reduce, as DDP). 1: optimizer state. 2: and gradients. 3: and parameters."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Where the optimizer's state lives and is stepped: on the device, in CPU memory, or on NVMe."""
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    """Where parameters live between uses; stage 3 only."""
    nvme_path: str = ""
    """Folder on the NVMe disk for offload to ``nvme``, in which each trial has one until its end."""
    optimizer_kernel: Literal["torch", "deepspeed"] = "torch"
    """torch: the suite's own optimizer, as in every other strategy. deepspeed: DeepSpeed's kernel
    (FusedAdam; DeepSpeedCPUAdam under offload), the same algorithm with other rounding."""
    reduce_bucket_size: Annotated[int | None, Bound(1, _MOST)] = None
    """Elements of a gradient bucket, at least 1; null: the largest layer of a model of up to 1e9 parameters,
    and for a larger one DeepSpeed's own, 5e8, which would dwarf a small model."""
    allgather_bucket_size: Annotated[int | None, Bound(1, _MOST)] = None
    """Elements of a parameter gather in stages 1 and 2, at least 1; null: as for ``reduce_bucket_size``."""
    overlap_comm: bool | None = None
    """Reduce gradients while the backward pass still runs, from stage 1 on, and gather parameters beside the
    computation in stage 3; it takes streams, so it changes nothing on CPUs. null: DeepSpeed's own, true in
    stage 3 alone."""
    param_persistence_threshold: Annotated[int | None, Bound(0, _MOST)] = None
    """Stage 3 keeps parameters smaller than this many elements whole on every rank; null: 0, which shards all
    of a model of up to 1e9 parameters, and for a larger one DeepSpeed's own, 1e5."""
    max_live_parameters: Annotated[int | None, Bound(0, _MOST)] = None
    """Stage 3 releases parameters beyond this many elements; null: three of the largest layer, or two and a
    larger embedding, of a model of up to 1e9 parameters, and for a larger one DeepSpeed's own, 1e9, which
    would keep a small model whole between forward and backward."""
    max_reuse_distance: Annotated[int | None, Bound(0, _MOST)] = None
    """Stage 3 keeps a parameter that is needed again within this many elements of computation; null: 0 for a
    model of up to 1e9 parameters, and for a larger one DeepSpeed's own, 1e9."""
    prefetch_bucket_size: Annotated[int | None, Bound(0, _MOST)] = None
    """Elements that stage 3 gathers ahead; null: the largest layer of a model of up to 1e9 parameters, and
    for a larger one DeepSpeed's own, 5e7."""

    def __post_init__(self) -> None:
        # what the stage alone decides, the id of a case holds: null would hide that two do the same
        decided: dict[str, int] = {"overlap_comm": self.stage == 3}
        if self.stage != 3:
            decided |= {"param_persistence_threshold": 0, "max_reuse_distance": 0}
        for option, value in decided.items():
            if getattr(self, option) is None:
                object.__setattr__(self, option, value)

    @property
    def label(self) -> str:
        name = f"zero{self.stage}"
        if "none" not in (self.offload_optimizer, self.offload_parameters):
            name += f"+offload-all{_suffix(self.offload_parameters)}"
        elif self.offload_parameters != "none":
            name += f"+offload-params{_suffix(self.offload_parameters)}"
        elif self.offload_optimizer != "none":
            name += f"+offload{_suffix(self.offload_optimizer)}"
        # the reverse, stage 3 without it, has no name of its own: earlier versions call that zero3
        if self.overlap_comm and self.stage != 3:
            name += "+overlap"
        return name if self.optimizer_kernel == "torch" else f"{name}+ds-adam"

    @property
    def card(self) -> Card:
        return card_of(self.stage, offloads=bool(self.offloads))

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(stage=0), cls(stage=1), cls(stage=2), cls(stage=3)

    @property
    def simplicity(self) -> int:
        return 40 + self.stage

    @property
    def offloads(self) -> tuple[str, ...]:
        return tuple(place for place in (self.offload_optimizer, self.offload_parameters) if place != "none")

    @property
    def leftovers(self) -> tuple[str, ...]:
        # DeepSpeed's CPU backend never unlinks its all-reduce buffers: 66 MiB a rank and trial
        buffers = "/dev/shm/deepspeed_allreduce_buffer_*_{port}_*"
        return (buffers, *(disk.leftovers(self.disk) if self.disk else ()))

    @property
    def disk(self) -> str:
        return self.nvme_path if "nvme" in self.offloads else ""

    @property
    def deviations(self) -> tuple[Deviation, ...]:
        if self.stage == 0:
            return ()
        return (_GATHERED_TWICE,) if self.stage == 3 else (_IN_TWO_PARTITIONS,)

    def problem(self, case: Case, machine: Machine) -> str | None:
        precision = case.precision
        if self.offload_optimizer != "none" and self.stage == 0:
            return "stage = 0: DeepSpeed can offload the optimizer only from stage 1 on"
        if self.offload_parameters != "none" and self.stage != 3:
            return f"stage = {self.stage}: DeepSpeed can offload parameters only in stage 3"
        if self.overlap_comm and self.stage == 0:
            return "overlap_comm: in stage 0 DeepSpeed reduces gradients after the backward pass, never in it"
        if self.optimizer_kernel == "deepspeed" and case.optimizer.name != "adamw":
            return f"optimizer.name = {case.optimizer.name}: DeepSpeed's kernel supports only adamw"
        if precision.master != "fp32":
            return f"precision.master = {precision.master}: DeepSpeed keeps fp32 master weights"
        if self.stage == 3 and "none" not in (case.compile, case.activation_checkpointing):
            # its hooks carry torch.compiler.disable, which torch can't leave out of a checkpoint (gb0098)
            return (
                "stage = 3 gathers parameters inside each layer, and torch compiles no such layer that is "
                "recomputed: nothing would be compiled; use activation_checkpointing: none or compile: false"
            )
        if precision.compute == "fp16" and case.device == "cpu":
            return "DeepSpeed's CPU accelerator does not support fp16"
        cut: Cut = "flat" if self.stage else "whole"
        problem = self._disk_problem(machine) or state_problem(case, cut, f"ZeRO {self.stage}")
        return problem or self._tools_problem(case, machine)

    def _disk_problem(self, machine: Machine) -> str | None:
        if "nvme" not in self.offloads:
            return None
        if self.stage != 3:
            return f"stage = {self.stage}: DeepSpeed offloads to NVMe only in stage 3, here to memory"
        if not machine.has_libaio:
            return f"offload to NVMe needs libaio; {ops.GET_LIBAIO}"
        return None if self.nvme_path else "offload to NVMe needs nvme_path: a folder on the disk"

    def imports(self, case: Case) -> tuple[str, ...]:
        # listing the op builders asks CUDA for its version, so on GPUs the ranks do that themselves
        builders = ("deepspeed.ops.op_builder.all_ops", "deepspeed.comm.mori")
        return (*_IMPORTS, *(builders if case.device == "cpu" else ()))

    def environment(self, case: Case) -> dict[str, str]:
        return {
            # DeepSpeed picks the accelerator by what it can import, not by what was asked for
            "DS_ACCELERATOR": case.device,
            "TORCH_EXTENSIONS_DIR": self.extensions_folder(case.device),
            "DEEPSPEED_LOG_LEVEL": "warning",
        }

    def extensions_folder(self, device: str) -> str:
        """Folder of DeepSpeed's built ops, in place of its default, which all environments share."""
        return str(ops_folder(sys.prefix, packages(), device))

    def op_builders(self, case: Case) -> list[str]:
        """DeepSpeed's builders of the C++ ops that *case* uses."""
        return [
            *(["ShareMemCommBuilder"] if case.device == "cpu" else []),
            *ops.OF_KERNELS.get(self.optimizer(case)[1], []),
            # which it loads itself
            *(["PinMemoryBuilder", "AsyncIOBuilder"] if "nvme" in self.offloads else []),
        ]

    def _tools_problem(self, case: Case, machine: Machine) -> str | None:
        folder = Path(self.extensions_folder(case.device))
        return ops.tools_problem(self.op_builders(case), folder, machine)

    def prepared(self, case: Case) -> str:
        builders = self.op_builders(case)
        return f"DeepSpeed's C++ ops {ops.names(builders)}" if builders else ""

    def prepare(self, case: Case) -> list[str]:
        # where the ranks look, whichever interpreter this is
        return ops.provide(self.op_builders(case), Path(os.environ["TORCH_EXTENSIONS_DIR"]))

    def optimizer(self, case: Case) -> tuple[str, str]:
        if self.optimizer_kernel == "torch":
            return super().optimizer(case)
        if self.offload_optimizer != "none" or case.device == "cpu":
            return "deepspeed.ops.adam.cpu_adam.DeepSpeedCPUAdam", "DeepSpeedCPUAdam"
        return "deepspeed.ops.adam.fused_adam.FusedAdam", "FusedAdam"

    def dimensions(self, ranks: int) -> dict[str, int]:
        return {"dp_shard" if self.stage else "dp_replicate": ranks}

    def collectives(self, case: Case, parameters: int) -> dict[str, float]:
        # Rajbhandari et al. 2020 (arXiv 1910.02054), section 7: 2 Psi up to stage 2, 3 Psi in stage 3;
        # from stage 2 on gradients are kept in shards and so reduced after every micro-batch
        if case.world_size == 1:
            return {}
        micro = case.batch.gradient_accumulation_steps
        reduced = parameters * BYTES[case.precision.reduce]
        gathered = parameters * BYTES[case.precision.compute]
        if self.stage == 0:
            return {"all_reduce": reduced}
        if self.stage == 3:
            return {"all_gather": 2 * micro * gathered, "reduce_scatter": micro * reduced}
        return {"reduce_scatter": reduced * (micro if self.stage == 2 else 1), "all_gather": gathered}

    def disk_traffic(self, case: Case, parameters: int) -> dict[str, float] | None:
        return disk.traffic(self, case, parameters) if self.disk else None

    def expected(self, case: Case) -> dict[str, Any]:
        return {"offload.optimizer": self.offload_optimizer, "offload.parameters": self.offload_parameters}

    def build(self, setting: Setting) -> Engine:
        if self.disk:
            from distbench.strategies.zero.nvme import build_on_disk

            return build_on_disk(self, setting)
        from distbench.strategies.zero.engine import build_zero

        return build_zero(self, setting)

    def model_states(self, case: Case, parameters: int) -> dict[str, float] | None:
        if "nvme" in self.offloads:
            return None
        ranks, stored = case.world_size, case.precision.compute
        accumulates = case.batch.gradient_accumulation_steps > 1
        sizes = zero_table(
            case,
            parameters,
            stored=stored,
            # from stage 1 on DeepSpeed keeps master weights even where they are of the same dtype
            master=case.precision.master if self.stage or stored != case.precision.master else None,
            shards=(
                ranks if self.stage == 3 else 1,
                # stage 1 keeps whole gradients only to add others to them; the paper's always does
                ranks if self.stage > 1 or (self.stage == 1 and not accumulates) else 1,
                ranks if self.stage else 1,
            ),
        )
        if self.offload_optimizer != "none":
            # the CPU's optimizer has its own gradients, in which stages 1 and 2 receive them
            received = sizes["gradients"] if self.stage == 3 or accumulates else 0.0
            sizes["gradients"] = received + parameters * BYTES[case.precision.master] / ranks
        return sizes


def _suffix(place: str) -> str:
    return "" if place == "cpu" else f"-{place}"
