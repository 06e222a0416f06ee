"""DDP whose optimizer is sharded: torch's ZeroRedundancyOptimizer, stage 1 of ZeRO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from distbench import optimizers
from distbench.strategies.ddp.engine import DdpEngine
from distbench.strategies.engine import FullState
from distbench.strategies.torch_engine import checkpoint, optimizer, reading
from distbench.workloads.weights import plain_name

_FILE = "checkpoint.pt"


class ShardedOptimizerEngine(DdpEngine):
    """Each rank updates some of the tensors, and sends them to the others."""

    _optimizer: ZeroRedundancyOptimizer

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        spec = self._case.optimizer
        kind = optimizers.kind_of(spec)
        made: Any = ZeroRedundancyOptimizer(
            self.module.parameters(),
            optimizer.class_of(kind),
            # one broadcast for each rank, not for each tensor
            parameters_as_bucket_view=True,
            **kind.arguments(spec),
            **kind.flags(spec),
        )
        stepping: torch.optim.Optimizer = made
        return stepping

    @property
    def updating(self) -> torch.optim.Optimizer:
        inside: torch.optim.Optimizer = self._optimizer.optim
        return inside

    def unsynchronised(self) -> None:
        # without reduced gradients its optimizer would still broadcast
        return None

    def effective(self) -> dict[str, Any]:
        # a scheduler changes the outer groups, from which each step copies
        outer: Any = self._optimizer
        outer._sync_param_groups(outer.param_groups, outer.optim.param_groups)
        return {
            **super().effective(),
            "sharded_optimizer": type(self._optimizer).__qualname__,
            "updated_tensors": len(optimizer.optimized(self.updating)),
            "parameters_as_bucket_view": self._optimizer.parameters_as_bucket_view,
        }

    def save(self, folder: Path) -> None:
        """Write all from rank 0, as this optimizer gathers its states there."""
        states = self._gathered()
        if states is not None:
            updates = optimizer.scheduled_updates(self._scheduler)
            whole = {"model": self.module.state_dict(), "optimizer": states, "updates": updates}
            torch.save(whole, folder / _FILE)

    def load(self, folder: Path) -> None:
        whole = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
        self.module.load_state_dict(whole["model"])
        self._take(whole["optimizer"])
        optimizer.schedule_from(self._scheduler, whole["updates"])

    def consolidate(self) -> FullState:
        states = (self._gathered() or {}).get("state", {})
        numbered = [(number, name) for number, name in enumerate(self._names) if number in states]
        moments = {name: checkpoint.kept(states[number]) for number, name in numbered}
        return FullState(
            reading.on_host(self.full_parameters()),
            self.buffers(),
            moments,
            optimizer.scheduled_updates(self._scheduler),
        )

    def load_full(self, state: FullState) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(state.parameters[plain_name(name)])
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state.buffers[plain_name(name)])
        numbered = enumerate(self._names)
        # SGD without momentum keeps nothing, and nobody anything for what is frozen
        states = {number: state.optimizer[name] for number, name in numbered if name in state.optimizer}
        groups = torch.optim.Optimizer.state_dict(self._optimizer)["param_groups"]
        self._take({"state": states, "param_groups": groups})
        optimizer.schedule_from(self._scheduler, state.updates)

    @property
    def _names(self) -> list[str]:
        """Plain names of the parameters, in the order of their numbers in the optimizer's state."""
        return [plain_name(name) for name, _ in self.module.named_parameters()]

    def _gathered(self) -> dict[str, Any] | None:
        """The optimizer's whole state on rank 0, in host memory; None on the others. A collective call."""
        self._optimizer.consolidate_state_dict(to=0)
        return self._optimizer.state_dict() if dist.get_rank() == 0 else None

    def _take(self, states: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(states)
        # it keeps another copy of what the optimizer inside has
        self._optimizer.state.clear()
        # torch 2.13 leaves all numbers on the host, whatever the kernel
        optimizer.move_steps(self.updating)
