"""``dp``: torch.nn.DataParallel, one process that drives several GPUs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.strategies.base import RankContext, Strategy
from distbench.strategies.cards import Card, built_in_card
from distbench.strategies.engine import Engine
from distbench.strategies.replicated_strategy import ReplicatedStrategy


@dataclass(frozen=True)
class DataParallel(ReplicatedStrategy):
    """torch.nn.DataParallel: one process, the model copied to every GPU at each step."""

    engine_class = "DataParallel"
    label = "dp"
    simplicity = 20

    @property
    def card(self) -> Card:
        return built_in_card("dp")

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return (cls(),)

    def processes(self, world_size: int) -> int:
        return 1

    def problem(self, case: Case, machine: Machine) -> str | None:
        if case.device != "cuda":
            return "nn.DataParallel needs CUDA devices"
        if machine.devices < 2:
            return f"nn.DataParallel needs at least 2 CUDA devices, but this machine has {machine.devices}"
        if case.world_size < 2:
            return "nn.DataParallel needs a world size of at least 2, but this case has 1"
        if case.world_size > (per_node := machine.devices_per_node):
            return f"nn.DataParallel uses the devices of one node, which has {per_node}"
        if case.compile != "none":
            return (
                "nn.DataParallel can't be compiled: it replicates the module in each forward pass, and "
                "compiled layers would run the original; use compile: false, or ddp"
            )
        if case.precision.compute != case.precision.master:
            return (
                "nn.DataParallel computes in the dtype of the parameters, so precision.compute = "
                f"{case.precision.compute} needs the same precision.master"
            )
        return super().problem(case, machine)

    def rank_passes(self, case: Case) -> None:
        """No theory: one process drives all devices, and copies the model to them in each pass."""

    def build(self, context: RankContext) -> Engine:
        from torch import nn

        from distbench.strategies.torch_engine.engine import WrappedEngine
        from distbench.strategies.torch_engine.modules import load_plain_module

        class DataParallelEngine(WrappedEngine):
            module: nn.DataParallel[nn.Module]

            @property
            def forward_module(self) -> nn.Module:
                # the replicas inherit its hooks
                return self.module.module

            def effective_settings(self) -> dict[str, Any]:
                settings, devices = super().effective_settings(), len(self.module.device_ids)
                # one process, which gets the samples of one of its devices
                samples = settings["global_batch_size"] * devices
                return {**settings, "world_size": devices, "global_batch_size": samples}

            def reduce_dtype(self) -> str:
                # the replicas' gradients are summed in the dtype of the parameters
                return context.case.precision.master

        module, layers = load_plain_module(context)
        wrapped = nn.DataParallel(module, device_ids=list(range(context.case.world_size)))
        return DataParallelEngine(context, wrapped, layers)
