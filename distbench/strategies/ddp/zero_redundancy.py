"""DDP with a sharded optimizer: torch's ZeroRedundancyOptimizer, stage 1 of ZeRO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from distbench import optimizers
from distbench.strategies.ddp.engine import DdpEngine
from distbench.strategies.engine import TrainingState
from distbench.strategies.torch_engine import checkpoint, optimizer, readback
from distbench.workloads.weights import plain_name

_FILE = "checkpoint.pt"


class ShardedOptimizerEngine(DdpEngine):
    """Each rank updates some of the tensors, and sends them to the others."""

    _optimizer: ZeroRedundancyOptimizer

    def make_optimizer(self, layers: list[nn.Module]) -> torch.optim.Optimizer:
        spec = self._case.optimizer
        kind = optimizers.entry_of(spec)
        made: Any = ZeroRedundancyOptimizer(
            self.module.parameters(),
            optimizer.import_optimizer_class(kind),
            # one broadcast per rank, not per tensor
            parameters_as_bucket_view=True,
            **kind.hyper_parameters(spec),
            **kind.kernel_flags(spec),
        )
        stepping: torch.optim.Optimizer = made
        return stepping

    @property
    def inner_optimizer(self) -> torch.optim.Optimizer:
        inside: torch.optim.Optimizer = self._optimizer.optim
        return inside

    def without_communication(self) -> None:
        # without reduced gradients its optimizer would still broadcast
        return None

    def effective_settings(self) -> dict[str, Any]:
        # a scheduler changes the outer groups, which each step copies
        outer: Any = self._optimizer
        outer._sync_param_groups(outer.param_groups, outer.optim.param_groups)
        return {
            **super().effective_settings(),
            "sharded_optimizer": type(self._optimizer).__qualname__,
            "updated_tensors": len(optimizer.optimized_tensors(self.inner_optimizer)),
            "parameters_as_bucket_view": self._optimizer.parameters_as_bucket_view,
        }

    def save_sharded(self, folder: Path) -> None:
        """Write everything from rank 0, where this optimizer gathers its states."""
        states = self._gather_optimizer_state()
        if states is not None:
            updates = optimizer.scheduled_updates(self._scheduler)
            whole = {"model": self.module.state_dict(), "optimizer": states, "updates": updates}
            torch.save(whole, folder / _FILE)

    def load_sharded(self, folder: Path) -> None:
        whole = torch.load(folder / _FILE, map_location="cpu", weights_only=True)
        self.module.load_state_dict(whole["model"])
        self._load_optimizer_state(whole["optimizer"])
        optimizer.restore_schedule(self._scheduler, whole["updates"])

    def gather_state(self) -> TrainingState:
        states = (self._gather_optimizer_state() or {}).get("state", {})
        numbered = [(number, name) for number, name in enumerate(self._parameter_names) if number in states]
        moments = {name: checkpoint.host_copy(states[number]) for number, name in numbered}
        return TrainingState(
            readback.copy_to_host(self.full_parameters()),
            self.buffers(),
            moments,
            optimizer.scheduled_updates(self._scheduler),
        )

    def scatter_state(self, state: TrainingState) -> None:
        with torch.no_grad():
            for name, parameter in self.module.named_parameters():
                parameter.copy_(state.parameters[plain_name(name)])
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state.buffers[plain_name(name)])
        numbered = enumerate(self._parameter_names)
        # SGD without momentum has no state, and no optimizer has any for frozen parameters
        states = {number: state.optimizer[name] for number, name in numbered if name in state.optimizer}
        groups = torch.optim.Optimizer.state_dict(self._optimizer)["param_groups"]
        self._load_optimizer_state({"state": states, "param_groups": groups})
        optimizer.restore_schedule(self._scheduler, state.scheduled_updates)

    @property
    def _parameter_names(self) -> list[str]:
        """Plain names of the parameters, in the order of their numbers in the optimizer's state."""
        return [plain_name(name) for name, _ in self.module.named_parameters()]

    def _gather_optimizer_state(self) -> dict[str, Any] | None:
        """Full optimizer state on rank 0, in host memory; None on the others. Collective call."""
        self._optimizer.consolidate_state_dict(to=0)
        return self._optimizer.state_dict() if dist.get_rank() == 0 else None

    def _load_optimizer_state(self, states: dict[str, Any]) -> None:
        self._optimizer.load_state_dict(states)
        # it keeps a second copy of the inner optimizer's state
        self._optimizer.state.clear()
        # torch 2.13 leaves all step counters on the host, whatever the kernel
        optimizer.move_step_counters(self.inner_optimizer)
