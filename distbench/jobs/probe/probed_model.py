"""Model of a probe: that of a case and its optimizer on each rank, without communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.jobs.probe.call_recorder import CallRecorder
from distbench.jobs.probe.clock import SharedClock, absent_row
from distbench.strategies.base import Batch, RankContext, Strategy
from distbench.worker.batches import MicroBatchReader
from distbench.worker.layer_hooks import LayerCallHooks
from distbench.workloads.module_calls import FlatModuleCall


class ProbedModel:
    """The model of a case on each rank, which computes and updates without any communication."""

    def __init__(self, context: RankContext, samples: Sequence[int]) -> None:
        self._context = context
        context.step.is_without_communication = True
        strategy: Strategy = registry.create_plugin("strategies", PluginChoice("single"))
        self._engine: Any = strategy.build(context)
        (whole,) = MicroBatchReader(context).micro_batches(0)
        self._batches: dict[int, Batch] = {
            number: {name: tensor[:number] for name, tensor in whole.items()} for number in samples
        }

    @property
    def samples(self) -> list[int]:
        """Samples of the micro-batches that the device has memory for, in ascending order."""
        return [*self._batches]

    def install_hooks(self) -> LayerCallHooks:
        """Install hooks in the layers of the model."""
        return LayerCallHooks(self._context.workload.layers(self._engine.module))

    def forward_backward(self, samples: int) -> None:
        """Forward and backward pass of a micro-batch; its gradients add up until ``update``."""
        batch = self._batches[samples]
        self._context.step.begin([batch])
        self._engine.forward_backward(batch)

    def record_calls(self) -> list[FlatModuleCall]:
        """Take a step; return the calls of the modules in its forward pass."""
        recorder = CallRecorder(self._engine.module)
        try:
            self.forward_backward(self.samples[0])
        finally:
            recorder.remove()
        self.update()
        return recorder.calls

    def update(self) -> None:
        """Update all parameters that have a gradient."""
        self._engine.step()

    def gradient_bytes(self) -> int:
        """Bytes of the parameters that the next update changes."""
        return sum(each.nbytes for each in self._engine.module.parameters() if each.grad is not None)

    def drop_half_of_gradients(self) -> None:
        """Drop gradients, so that at most half of the bytes to update are left."""
        left = self.gradient_bytes() // 2
        for each in self._engine.module.parameters():
            if each.grad is None or each.nbytes > left:
                each.grad = None
            else:
                left -= each.nbytes

    def warm_up(self, clock: SharedClock) -> Iterator[dict[str, Any]]:
        """Take a step with each micro-batch; yield rows of those that the device has no memory for.

        Raises:
            torch.OutOfMemoryError: there is none for the smallest.
        """
        smallest, *larger = self.samples
        for _ in range(2):
            clock.time(partial(self.forward_backward, smallest))
            clock.time(self.update)
        for number in larger:
            if reason := self._memory_problem(number):
                for each in [size for size in self.samples if size >= number]:
                    del self._batches[each]
                    yield absent_row("forward_backward", reason, samples=each)
                return
            clock.time(self.update)

    def _memory_problem(self, samples: int) -> str:
        """Reason why no micro-batch of *samples* fits on some rank; empty: it does. A collective call."""
        failure = ""
        try:
            self.forward_backward(samples)
        except torch.OutOfMemoryError as error:
            failure = str(error).partition("\n")[0]
        failures = [""] * dist.get_world_size()
        dist.all_gather_object(failures, failure)
        return next(filter(None, failures), "")

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()
