"""The engine of a rank that has some stages of a model: what it gives to the whole, and takes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from distbench.strategies.base import Setting
from distbench.strategies.engine import FullState
from distbench.strategies.pp.gathering import gathered
from distbench.strategies.pp.line import Line
from distbench.strategies.pp.stages import Part, held
from distbench.strategies.pp.tying import Tying
from distbench.strategies.torch_engine import checkpoint, gathering, optimizer, reading
from distbench.strategies.torch_engine.engine import TorchEngine
from distbench.workloads.stages import Stages
from distbench.workloads.weights import plain_name


class PartEngine(TorchEngine):
    """Some parts of a model, of which the other ranks of a line have the others."""

    def __init__(
        self, setting: Setting, model: Stages, parts: list[Part], line: Line, ends: tuple[int, int]
    ) -> None:
        super().__init__(setting, held(parts), [layer for part in parts for layer in part.layers])
        self._model, self._line = model, line
        self._tying = Tying(model, self.module, line, ends)

    @property
    def called(self) -> nn.Module:
        # the first stage of this rank; nobody calls what holds them all
        return next(self.module.children())

    def full_gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        own = {
            name: parameter.grad if self._scale == 1 else parameter.grad / self._scale
            for name, parameter in self.own().items()
            if parameter.grad is not None
        }
        return gathered(own, self._setting.device, self._line)

    def full_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """See the base; a rank with copies of tied weights of the first gives those, to be compared."""
        own = {name: parameter.detach() for name, parameter in self.own().items()}
        yield from gathered(own, self._setting.device, self._line)
        if self._line.place:
            yield from self._tying.copies()

    def grad_norm(self) -> float:
        own = torch.tensor(reading.norm(self._own_gradients()), dtype=torch.float64)
        return float(self._line.norm_of_all(own.to(self._setting.device))) / self._scale

    def total_norm(self) -> torch.Tensor:
        own = reading.full(nn.utils.get_total_norm(self._own_gradients()))
        # where nothing is trained torch gives 0 on the host, and NCCL reduces with nobody there
        return self._line.norm_of_all(own.double().to(self._setting.device)).to(own.dtype)

    def clip(self, limit: float) -> None:
        # a copy of a tied weight is scaled as well, and was counted once
        nn.utils.clip_grads_with_norm_(self.module.parameters(), limit, self.total_norm())

    def save(self, folder: Path) -> None:
        updates = optimizer.scheduled_updates(self._scheduler)
        checkpoint.save(self.module, self._optimizer, folder, updates, tied=self._model.tied)

    def load(self, folder: Path) -> None:
        updates = checkpoint.load(self.module, self._optimizer, folder, tied=self._model.tied)
        optimizer.schedule_from(self._scheduler, updates)

    def consolidate(self) -> FullState:
        every = checkpoint.gather_optimizer(self.module, self._optimizer, whole=False)
        own = {name: moments for name, moments in every.items() if name not in self._tying.names}
        return FullState(
            reading.on_host(self.full_parameters()),
            reading.on_host(gathered(self.buffers(), self._setting.device, self._line)),
            gathering.nested(own, self._setting.device, self._line.group),
            optimizer.scheduled_updates(self._scheduler),
        )

    def load_full(self, state: FullState) -> None:
        # a rank with both copies would otherwise update the same moments twice: torch takes them as they are
        super().load_full(gathering.with_copies(state, self._model.tied))

    def close(self) -> None:
        self._tying.close()

    def own(self) -> dict[str, nn.Parameter]:
        """Parameters of this rank by plain name, without copies of tied ones."""
        named = ((plain_name(name), parameter) for name, parameter in self.module.named_parameters())
        return {name: parameter for name, parameter in named if name not in self._tying.names}

    def _own_gradients(self) -> list[torch.Tensor]:
        return [parameter.grad for parameter in self.own().values() if parameter.grad is not None]
