"""Peak memory of a training step, traced on fake tensors: without memory, devices or other ranks.

torch's ``FakeTensorMode`` runs the strategy's own engine on tensors that have shapes but no values, and its
``fake`` process group returns from every collective at once. What is counted are the bytes of the storages
that the operations of a CPU make, from their birth to their death.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    unset_fake_temporarily,
)
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.serialization import decode
from distbench.data.base import DataSource
from distbench.ipc.memory_traces import TracedMemory
from distbench.strategies.base import Batch, RankContext, Strategy
from distbench.strategies.description import TracedStep
from distbench.strategies.engine import Engine
from distbench.system.processes import die_with_parent
from distbench.worker.batches import to_rank_device
from distbench.worker.user_code import message_with_line
from distbench.workloads.base import workload_of

_CUDA_BLOCK = 512
"""Bytes to a multiple of which torch's CUDA allocator rounds (``kMinBlockSize``)."""
_COPIED_BY_GLOO: dict[Any, Callable[[Any, Sequence[Any]], torch.Tensor]] = {
    torch.ops.c10d._allgather_base_.default: lambda _, args: args[0],
    torch.ops.c10d._reduce_scatter_base_.default: lambda _, args: args[1],
    torch.ops._c10d_functional.all_gather_into_tensor.default: lambda result, _: result,
    torch.ops._c10d_functional.reduce_scatter_tensor.default: lambda _, args: args[0],
}
"""Collective -> its array that gloo copies (``ProcessGroupGloo.cpp``): what is gathered, or reduced."""
_STEPS = 2
"""The first step creates the optimizer's state; from the second on, each is like the next."""
_PHASES = {"forward": "forward", "backward": "backward", "optimizer": "step"}


class StorageTracer(TorchDispatchMode):
    """Count the bytes of live storages, and the most of each phase of a step."""

    def __init__(self, device: str) -> None:
        """Count as the allocator of a kind of *device* does."""
        super().__init__()
        self._block = _CUDA_BLOCK if device == "cuda" else 1
        self._has_gloo = device == "cpu"
        self._sizes: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._phase = "data"
        self.allocated = 0
        """Bytes of the live storages."""
        self.peaks: dict[str, int] = {}
        """Phase (``data``, ``forward``, ``backward``, ``step``) -> maximum of these bytes."""

    @contextmanager
    def phase(self, span: str) -> Iterator[None]:
        """Count what follows for the phase of *span*, a span of ``Engine.span``."""
        before, self._phase = self._phase, _PHASES.get(span, self._phase)
        self._count(0)
        yield
        self._phase = before

    @contextmanager
    def counted_resizes(self) -> Iterator[None]:
        """Context in which storages are also followed as they are freed and allocated again.

        FSDP does so, and no operation that a dispatch mode could see.
        """
        resize = torch.UntypedStorage.resize_

        def counted(storage: torch.UntypedStorage, size: int) -> Any:
            result = resize(storage, size)
            if storage._cdata in self._sizes:
                self._set_size(storage, self.rounded(storage.nbytes()))
            return result

        torch.UntypedStorage.resize_ = counted  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]

    def ignore(self, batches: Sequence[Batch]) -> None:
        """Count no bytes of the tensors of *batches*."""
        for tensor in (tensor for batch in batches for tensor in batch.values()):
            self._set_size(tensor.untyped_storage(), 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            # the operations on its local tensors are dispatched here
            return NotImplemented
        if func is torch.ops._c10d_functional.wait_tensor.default:
            # the same tensor, of which a fake one would be a copy
            return args[0]
        if _is_real(args, kwargs or {}):
            # a module on the meta device, and the ranks of a mesh, whose values are read
            with unset_fake_temporarily():
                return func(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        self._follow(result)
        if self._has_gloo and func in _COPIED_BY_GLOO:
            copied = _COPIED_BY_GLOO[func](result, args).untyped_storage().nbytes()
            self._count(copied)
            self._count(-copied)
        return result

    def _follow(self, value: Any) -> None:
        if isinstance(value, FakeTensor):
            storage = value.untyped_storage()
            if storage._cdata not in self._sizes and value.device.type != "meta":
                self._set_size(storage, self.rounded(storage.nbytes()))
        elif isinstance(value, list | tuple):
            for item in value:
                self._follow(item)

    def _set_size(self, storage: torch.UntypedStorage, size: int) -> None:
        """Follow *storage*, which counts as *size* bytes until it is freed."""
        key = storage._cdata
        reference, before = self._sizes.get(key, (None, 0))
        self._sizes[key] = reference or weakref.ref(storage, lambda _: self._forget(key)), size
        self._count(size - before)

    def _forget(self, key: int) -> None:
        _, size = self._sizes.pop(key)
        self.allocated -= size

    def _count(self, change: int) -> None:
        self.allocated += change
        self.peaks[self._phase] = max(self.peaks.get(self._phase, 0), self.allocated)

    def rounded(self, size: int) -> int:
        """Bytes that the allocator counts for *size*."""
        return -(-size // self._block) * self._block


def _is_real(arguments: Sequence[Any], options: dict[str, Any]) -> bool:
    """True for an operation on tensors none of which is fake, and for one that makes a tensor on ``meta``."""
    given = [x for x in pytree.tree_leaves((arguments, options)) if isinstance(x, torch.Tensor)]
    device = options.get("device")
    made_on = None if device is None else torch.device(device).type
    if not given:
        return made_on == "meta"
    # what is moved off the meta device is fake from then on
    return not any(isinstance(x, FakeTensor) for x in given) and made_on in (None, given[0].device.type)


def trace_step(step: TracedStep, kind: str) -> TracedMemory:
    """Peak memory of rank 0 in *step*, on a device of *kind* (``cpu``, ``cuda``).

    Raises:
        Exception: whatever the engine or the model raises on tensors without values.
    """
    case = dataclasses.replace(step.case, device="cpu")
    counter = StorageTracer(kind)
    with _fake_ranks(case) as context:
        row = _first_row(context)
        with FakeTensorMode(allow_non_fake_inputs=True), counter, counter.counted_resizes():
            strategy: Strategy = registry.create_plugin("strategies", case.strategy)
            engine = strategy.build(context)
            engine.span = counter.phase
            for _ in range(_STEPS):
                counter.peaks.clear()
                batches = _fake_batches(context, row)
                if kind == "cpu":
                    # they are arrays of NumPy there, and no memory of torch's allocator
                    counter.ignore(batches)
                _train_step(engine, context, batches)
                del batches
            copies = counter.rounded(step.gradient_copies * _gradient_bytes(engine))
            between_steps = counter.allocated + copies
    phase, peak = max(counter.peaks.items(), key=lambda item: item[1])
    return TracedMemory(peak=peak + copies, phase=phase, between_steps=between_steps)


def _first_row(context: RankContext) -> Batch:
    """Batch of the first row of the case's data: all are alike in shape and dtype."""
    case = context.case
    source: DataSource = registry.create_plugin("data", case.data)
    context.step.weighs_labels = source.weighs_labels
    # of a batch of one row: a batch that can't fit is not to be made
    rows = source.open(context.workload.shape, case.seed, 1)
    return to_rank_device(rows(0, range(1)), context)


def _fake_batches(context: RankContext, row: Batch) -> list[Batch]:
    """Micro-batches of a step of rows like *row*."""
    batch = context.case.batch
    return [
        {name: torch.empty((batch.micro_batch_size, *x.shape[1:]), dtype=x.dtype) for name, x in row.items()}
        for _ in range(batch.gradient_accumulation_steps)
    ]


def _train_step(engine: Engine, context: RankContext, batches: Sequence[Batch]) -> None:
    context.step.begin(batches)
    for batch in batches:
        engine.forward_backward(batch)
    engine.step()


def _gradient_bytes(engine: Engine) -> int:
    """Bytes of the gradients of all trained parameters of *engine*, whole."""
    module: Any = engine
    return sum(p.nbytes for p in module.module.parameters() if p.requires_grad)


@contextmanager
def _fake_ranks(case: Case) -> Iterator[RankContext]:
    """Context of rank 0 of *case* among ranks that don't exist."""
    ranks = case.world_size
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    try:
        strategy: Strategy = registry.create_plugin("strategies", case.strategy)
        yield RankContext(
            case,
            workload_of(case),
            # no weights are read: fake tensors have no values
            Path(os.devnull),
            torch.device("cpu"),
            rank=0,
            world_size=ranks,
            trial_folder=Path(os.devnull),
            data_rank_of=[strategy.data_parallel_rank(rank, ranks) for rank in range(ranks)],
        )
    finally:
        dist.destroy_process_group()


def trace_cases(file: Path) -> None:
    """Trace the steps in *file*, and print the result of each as a line of JSON as soon as it is known."""
    die_with_parent(os.getppid())
    # what models print must not be taken for results
    results = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for request in json.loads(file.read_text()):
        step = decode(TracedStep, request["step"], str(file))
        try:
            found = trace_step(step, request["device"])
        except Exception as error:
            # the model is the user's, and torch refuses what depends on values: each is an answer
            found = TracedMemory(reason=_reason(error, step.case))
        results.write(json.dumps(dataclasses.asdict(found)) + "\n")
        results.flush()


def _reason(error: Exception, case: Case) -> str:
    """Reason why the step of *case* that raised *error* has no peak, with the line of the user's code."""
    message = message_with_line(error, case.workload, case.data).strip()
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        return f"a trace has shapes and no values, but the step reads the values of a tensor: {message}"
    return f"{type(error).__name__}: {message}"
