"""The operations that hold the memory of a rank at the peak of one step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from distbench.metrics.memory.allocators import AllocatorStats

_GROWTH = 1.001
"""Growth of memory over the last snapshot, as a ratio, for which the next one is taken."""
_MOST_ROWS = 20
# calls pass through these on their way from the code that needs memory
_WRAPPERS = (
    "deepspeed/utils/nvtx.py",
    "torch/distributed/c10d_logger.py",
    "torch/distributed/distributed_c10d.py",
)
_CALLERS = ("torch/distributed/", "torch/optim/")
"""Parts of torch that are named; all others only pass a call on."""
_BACKWARD_ENGINE = "torch/autograd/graph.py"


@dataclass(frozen=True)
class _Origin:
    holder: str
    op: str | None = None
    place: str | None = None


@dataclass(frozen=True)
class _Snapshot:
    allocated: int
    held: dict[_Origin, int]


class PeakRecorder(TorchDispatchMode):
    """Follow the tensors that a step makes, and keep those that exist at the peak of each phase.

    Memory is read after each operation; a snapshot is taken if it exceeds the last one by 0.1%.
    """

    def __init__(self, allocator: AllocatorStats, device: torch.device) -> None:
        super().__init__()
        self._allocator, self._device = allocator, device.type
        self._before = allocator.allocated()
        self._storages: dict[int, tuple[weakref.ref[Any], _Origin]] = {}
        self._snapshots: dict[str, _Snapshot] = {}
        self._phase = ""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: run compiled code unchanged; what it allocates has the holder ``internal``."""
        return True

    @contextmanager
    def observe(self, phase: str) -> Iterator[None]:
        """Follow the operations of *phase*."""
        self._phase = phase
        with self:
            yield

    def rows(self, phases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of the table ``memory_peak_holders``, for the largest peak among the rows *phases*."""
        known = [row for row in phases if row["phase"] in self._snapshots]
        if not known:
            return []
        highest = max(known, key=lambda row: int(row["peak"]))
        snapshot = self._snapshots[highest["phase"]]
        rest = max(0, snapshot.allocated - sum(snapshot.held.values()))
        others = {
            "before": min(rest, self._before),
            "internal": max(0, rest - self._before),
            "transient": max(0, highest["peak"] - snapshot.allocated),
        }
        made = [*_largest(snapshot.held), *((_Origin(name), size) for name, size in others.items() if size)]
        return [{"phase": highest["phase"], **asdict(origin), "bytes": size} for origin, size in made]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, torch.distributed.tensor.DTensor) for kind in types):
            # the operations on its local tensors are dispatched here
            return NotImplemented
        every = (*args, *(kwargs or {}).values())
        given = {storage._cdata for storage in self._storages_of(every)}
        result = func(*args, **(kwargs or {}))
        for storage in self._storages_of(result):
            if storage._cdata not in given and storage._cdata not in self._storages and storage.nbytes():
                self._follow(storage, _Origin(self._phase, func._schema.name, _calling_place()))
        self._compare()
        return result

    def _storages_of(self, value: Any) -> Iterator[torch.UntypedStorage]:
        # subclasses consist of plain tensors; sparse ones and those of functorch have no storage
        if type(value) in (torch.Tensor, torch.nn.Parameter):
            if value.device.type == self._device and value.layout is torch.strided:
                with suppress(RuntimeError):
                    yield value.untyped_storage()
        elif isinstance(value, list | tuple):
            for item in value:
                yield from self._storages_of(item)

    def _follow(self, storage: torch.UntypedStorage, origin: _Origin) -> None:
        key = storage._cdata
        gone = self._storages
        self._storages[key] = weakref.ref(storage, lambda _: gone.pop(key, None)), origin

    def _compare(self) -> None:
        now, last = self._allocator.allocated(), self._snapshots.get(self._phase)
        if last is not None and now <= last.allocated * _GROWTH:
            return
        held: dict[_Origin, int] = {}
        for reference, origin in list(self._storages.values()):
            # FSDP frees and fills storages that stay
            if (storage := reference()) is not None and (size := storage.nbytes()):
                held[origin] = held.get(origin, 0) + size
        self._snapshots[self._phase] = _Snapshot(now, held)


def _largest(held: dict[_Origin, int]) -> list[tuple[_Origin, int]]:
    """The largest of *held*, and the sum of the others of each phase."""
    ordered = sorted(held.items(), key=lambda item: -item[1])
    others: dict[_Origin, int] = {}
    for origin, size in ordered[_MOST_ROWS:]:
        phase = _Origin(origin.holder)
        others[phase] = others.get(phase, 0) + size
    return [*ordered[:_MOST_ROWS], *others.items()]


def _calling_place() -> str:
    """Innermost ``file.py:line (function)`` outside of what only passes calls on, or the node of autograd."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = _relative(frame.f_code)
        if file == _BACKWARD_ENGINE:
            break
        if not _passes_calls_on(file):
            return f"{file}:{frame.f_lineno} ({frame.f_code.co_name})"
        frame = frame.f_back
    # autograd's own threads, which GPUs have, begin without any frame of Python
    node = torch._C._current_autograd_node()
    return f"backward pass ({node.name()})" if node else "backward pass"


def _passes_calls_on(file: str) -> bool:
    if file in _WRAPPERS or file.startswith("distbench/metrics/"):
        return True
    return file.startswith("torch/") and not file.startswith(_CALLERS)


_relative_paths: dict[CodeType, str] = {}


def _relative(code: CodeType) -> str:
    """File of *code* relative to the folder that Python imported it from; its name alone if unknown."""
    if code not in _relative_paths:
        file = code.co_filename
        folders = [place for folder in sys.path if folder and file.startswith(place := f"{folder}/")]
        inside = max(folders, key=len, default=file[: file.rfind("/") + 1])
        _relative_paths[code] = file.removeprefix(inside)
    return _relative_paths[code]
