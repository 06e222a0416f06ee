"""Watches a training of the equivalence check, and keeps what it is compared by."""

from __future__ import annotations

import torch

from distbench.strategies.base import Engine, Setting
from distbench.worker.moves import Moves
from distbench.worker.sketch import digests, rows, sketch
from distbench.worker.trainer import Kept, Rows, Step, not_as_on_rank_0
from distbench.workloads import weights


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

    def watch(self, training: str, engine: Engine) -> None:
        """Watch from now on the *training* of *engine*, which has not taken any step."""
        self.training = training
        self._keep_state(-1, engine)

    def gradients(self, step: Step, engine: Engine) -> bool:
        """Keep the curve, and the gradients of the first step; the others only weight the moves."""
        super().gradients(step, engine)
        gradients = engine.full_gradients()
        if step.number == 0:
            self.keep(0, "gradient", gradients)
        if self._moves:
            self._moves.see(gradients)
        return True

    def updated(self, step: Step, engine: Engine, seconds: float) -> None:
        """Keep moves and buffers after *step*."""
        self._keep_state(step.number, engine)

    def _keep_state(self, step: int, engine: Engine) -> None:
        """Keep parameters and buffers after *step*, and the first rank whose copy differs from rank 0's."""
        state = engine.full_state()
        if step < 0:
            self._moves = Moves(state) if self._is_first else None
            hashes = self.keep(step, "parameter", state, everywhere=True)
        else:
            hashes = digests(state)
            self._keep_updates(step, state, hashes)
        hashes |= self.keep(step, "buffer", self._buffers(engine), everywhere=True)
        rank, names = next(not_as_on_rank_0(hashes), (0, []))
        if names and not any(row["training"] == self.training for row in self.replicas):
            row = {"training": self.training, "step": step, "of_rank": rank, "tensor": names[0]}
            self.replicas.append(row)

    def _keep_updates(self, step: int, state: dict[str, torch.Tensor], hashes: dict[str, str]) -> None:
        if self._moves is None:
            return
        moved = rows({name: sketch(self._moves.parts(name, tensor)) for name, tensor in state.items()})
        place = {"training": self.training, "step": step, "of": "update"}
        self.tensors += [
            {**place, "tensor": name, **row, "digest": hashes[name]} for name, row in moved.items()
        ]

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
            name: buffer for name, buffer in real.items() if buffer.is_floating_point() and buffer.numel()
        }


def _has_buffers(setting: Setting) -> bool:
    """Whether the model has any buffer."""
    return next(weights.skeleton(setting.workload).buffers(), None) is not None
