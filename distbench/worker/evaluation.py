"""Evaluation of a model on rows that it never trains on, the same rows for every strategy."""

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from distbench.data.base import Merit
from distbench.strategies.base import Engine, Setting
from distbench.worker.checks import Refused


class Evaluation:
    """The figure of merit over the held-out rows, of which this rank evaluates its share."""

    def __init__(self, setting: Setting, merit: Merit, rows: dict[str, np.ndarray]) -> None:
        """Cut *rows* (each array has them as its first axis) into this rank's parts."""
        self._setting, self._merit = setting, merit
        # sharded parameters are gathered by all ranks together, so all need the same number of parts
        count = len(next(iter(rows.values())))
        own = np.array_split(np.arange(count), setting.world_size)[setting.rank]
        largest = -(-count // setting.world_size)
        parts = -(-largest // setting.case.batch.micro_batch_size)
        self._parts = [
            {name: self._placed(array[part]) for name, array in rows.items()}
            for part in np.array_split(own, parts)
        ]
        if count < setting.world_size * parts:
            raise Refused(f"{count} held-out rows are too few for {setting.world_size} ranks")

    def value(self, engine: Engine) -> float:
        """Figure of merit over all rows. A collective call, between steps."""
        sums = torch.zeros(3, dtype=torch.float64)
        for part in self._parts:
            sums += engine.evaluate(lambda module, part=part: self._sums(module, part))  # type: ignore[misc]
        dist.all_reduce(sums)
        nats, correct, labels = sums.tolist()
        if self._merit.of == "accuracy":
            return float(correct / labels)
        return float((nats / labels - self._merit.floor) * self._merit.scale)

    def _sums(self, module: nn.Module, part: dict[str, torch.Tensor]) -> torch.Tensor:
        """Sums over labels: cross-entropy in nats, correct predictions, and their number."""
        # a loss only calls the module, so its output can be intercepted
        recorder: Any = _Recorder(module)
        self._setting.workload.loss(recorder, part)
        logits, labels = recorder.output, part["labels"]
        if not isinstance(logits, torch.Tensor) or logits.shape[:-1] != labels.shape:
            output = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise Refused(f"the model returns {output}, not logits for labels of shape {tuple(labels.shape)}")
        exact = logits.double().flatten(0, -2)
        nats = functional.cross_entropy(exact, labels.flatten(), reduction="sum")
        correct = (exact.argmax(-1) == labels.flatten()).sum()
        return torch.tensor([float(nats), float(correct), labels.numel()], dtype=torch.float64)

    def _placed(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array).to(self._setting.device)
        is_double = self._setting.case.precision.master == "fp64" and tensor.is_floating_point()
        return tensor.double() if is_double else tensor


class _Recorder:
    """Stands in for a module in ``Workload.loss`` and keeps its output."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self.output: Any = None

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        self.output = self._module(*inputs, **named)
        return self.output

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
