"""Record gradients, weighted parameter updates and buffers of a training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from distbench.strategies.base import RankContext
from distbench.strategies.engine import Engine
from distbench.worker.sketch import NamedTensors
from distbench.worker.trainer import Rows, TrainingRecorder, TrainingStep, consume, differing_ranks
from distbench.worker.update_sizes import WeightedUpdates
from distbench.workloads import batch_norm, weights


class FingerprintRecorder(TrainingRecorder):
    """Recorder of curves, first gradients, and parameter updates and buffers after each step."""

    def __init__(self, context: RankContext) -> None:
        super().__init__(context.rank)
        self._context = context
        self._updates: WeightedUpdates | None = None
        """Updates of the current training; only on rank 0."""
        self.diverged_replicas: Rows = []
        """First replica of each training that differs from that of rank 0."""
        self.notes: Rows = []
        norms = (
            batch_norm.batch_norm_layers(weights.meta_module(context.workload))
            if context.case.depends_on_batch_division
            else {}
        )
        self._rank_local_buffers = {
            f"{name}.{buffer}" for name, norm in norms.items() for buffer, _ in norm.named_buffers()
        }
        """Buffers that legitimately differ between ranks."""

    def before_training(self, training: str, engine: Engine) -> None:
        """Record the *training* of *engine* from now on, before its first step."""
        self.training = training
        self._record_state(-1, engine)

    def before_update(self, step: TrainingStep, engine: Engine) -> bool:
        """Record the curve, and the gradients of the first step; later ones only weight the updates."""
        super().before_update(step, engine)
        gradients: NamedTensors = engine.full_gradients()
        if self._updates:
            self._updates.next_step()
            gradients = self._tapped(gradients, self._updates.add_gradient)
        if step.number == 0:
            self.record_tensors(0, "gradient", gradients)
        else:
            consume(gradients)
        return True

    def after_update(self, step: TrainingStep, engine: Engine, seconds: float) -> None:
        """Record parameter updates and buffers after *step*."""
        self._record_state(step.number, engine)

    def _record_state(self, step: int, engine: Engine) -> None:
        """Record parameters and buffers after *step*, and the first replica that differs from rank 0's."""
        state: NamedTensors = engine.full_parameters()
        if step < 0:
            self._updates = WeightedUpdates() if self._is_rank_0 else None
            if self._updates:
                state = self._tapped(state, self._updates.record_start)
            hashes = self.record_tensors(step, "parameter", state, on_all_ranks=True)
        else:
            moved = self._updates.weighted_chunks if self._updates else None
            hashes = self.record_tensors(step, "update", state, on_all_ranks=True, chunks_of=moved)
        hashes |= self.record_tensors(step, "buffer", self._buffers(engine).items(), on_all_ranks=True)
        rank, names = next(differing_ranks(hashes), (0, []))
        if names and not any(row["training"] == self.training for row in self.diverged_replicas):
            row = {"training": self.training, "step": step, "of_rank": rank, "tensor": names[0]}
            self.diverged_replicas.append(row)

    @staticmethod
    def _tapped(tensors: NamedTensors, callback: Callable[[str, torch.Tensor], None]) -> NamedTensors:
        """Yield *tensors*, after calling *callback* with each."""
        for name, tensor in tensors:
            callback(name, tensor)
            yield name, tensor

    def _buffers(self, engine: Engine) -> dict[str, torch.Tensor]:
        """Buffers of this rank's module, as real numbers; none, and a note, if the engine hides them."""
        try:
            buffers = engine.buffers()
        except NotImplementedError as error:
            note = {"training": "case", "text": f"buffers are not compared: {error}"}
            if _has_buffers(self._context) and note not in self.notes:
                self.notes.append(note)
            return {}
        real = {
            name: torch.view_as_real(buffer) if buffer.is_complex() else buffer
            for name, buffer in buffers.items()
        }
        # integers are constants, or count calls, of which accumulation makes more
        return {
            name: buffer
            for name, buffer in real.items()
            if buffer.is_floating_point() and buffer.numel() and name not in self._rank_local_buffers
        }


def _has_buffers(context: RankContext) -> bool:
    """True if the model has any buffer."""
    return next(weights.meta_module(context.workload).buffers(), None) is not None
