"""Watches a training of the equivalence check, and keeps what it is compared by."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distbench.strategies.base import Setting
from distbench.strategies.engine import Engine
from distbench.worker.moves import Moves
from distbench.worker.sketch import Named
from distbench.worker.trainer import Kept, Rows, Step, exhaust, not_as_on_rank_0
from distbench.workloads import batch_norm, weights


class Fingerprints(Kept):
    """Curves of trainings; gradients of their first step; moves of parameters and buffers after each one."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting.rank)
        self._setting = setting
        self._moves: Moves | None = None
        """Of the training that is watched; on rank 0 alone."""
        self.replicas: Rows = []
        """Of each training the first copy on another rank that is not that of rank 0."""
        self.notes: Rows = []
        norms = batch_norm.layers(weights.skeleton(setting.workload)) if setting.case.parts_matter else {}
        self._differ = {
            f"{name}.{buffer}" for name, norm in norms.items() for buffer, _ in norm.named_buffers()
        }
        """Buffers of which each rank has its own by design."""

    def watch(self, training: str, engine: Engine) -> None:
        """Watch from now on the *training* of *engine*, which has not taken any step."""
        self.training = training
        self._keep_state(-1, engine)

    def gradients(self, step: Step, engine: Engine) -> bool:
        """Keep the curve, and the gradients of the first step; the others only weight the moves."""
        super().gradients(step, engine)
        gradients: Named = engine.full_gradients()
        if self._moves:
            self._moves.step()
            gradients = self._passing(gradients, self._moves.see)
        if step.number == 0:
            self.keep(0, "gradient", gradients)
        else:
            exhaust(gradients)
        return True

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        """Keep moves and buffers after *step*."""
        self._keep_state(step.number, engine)

    def _keep_state(self, step: int, engine: Engine) -> None:
        """Keep parameters and buffers after *step*, and the first rank whose copy differs from rank 0's."""
        state: Named = engine.full_parameters()
        if step < 0:
            self._moves = Moves() if self._is_first else None
            if self._moves:
                state = self._passing(state, self._moves.start)
            hashes = self.keep(step, "parameter", state, everywhere=True)
        else:
            moved = self._moves.parts if self._moves else None
            hashes = self.keep(step, "update", state, everywhere=True, parts_of=moved)
        hashes |= self.keep(step, "buffer", self._buffers(engine).items(), everywhere=True)
        rank, names = next(not_as_on_rank_0(hashes), (0, []))
        if names and not any(row["training"] == self.training for row in self.replicas):
            row = {"training": self.training, "step": step, "of_rank": rank, "tensor": names[0]}
            self.replicas.append(row)

    @staticmethod
    def _passing(tensors: Named, to: Callable[[str, torch.Tensor], None]) -> Named:
        """*tensors*, each of which is shown to *to* on its way."""
        for name, tensor in tensors:
            to(name, tensor)
            yield name, tensor

    def _buffers(self, engine: Engine) -> dict[str, torch.Tensor]:
        """Buffers of this rank's module, as real numbers; none, and a note, if the engine hides them."""
        try:
            buffers = engine.buffers()
        except NotImplementedError as error:
            note = {"training": "case", "text": f"buffers are not compared: {error}"}
            if _has_buffers(self._setting) and note not in self.notes:
                self.notes.append(note)
            return {}
        real = {
            name: torch.view_as_real(buffer) if buffer.is_complex() else buffer
            for name, buffer in buffers.items()
        }
        # whole numbers are constants, or count calls, of which accumulation makes more
        return {
            name: buffer
            for name, buffer in real.items()
            if buffer.is_floating_point() and buffer.numel() and name not in self._differ
        }


def _has_buffers(setting: Setting) -> bool:
    """Whether the model has any buffer."""
    return next(weights.skeleton(setting.workload).buffers(), None) is not None
