"""Sees every collective on its way through torch's dispatcher: DDP's C++ reducer, FSDP, DeepSpeed, DTensor.

Patched functions of torch.distributed miss DDP's reducer; DeepSpeed's own logger sees nothing
but DeepSpeed and makes every operation blocking.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

Key = tuple[str, int, str]


@dataclass
class Row:
    """What one kind of collective adds up to in one step."""

    calls: int = 0
    bytes: int = 0


# operation -> its public name, and which argument is the full array (None: the result)
_C10D: dict[str, tuple[str, int]] = {
    "allreduce_": ("all_reduce", 0),
    "allreduce_coalesced_": ("all_reduce", 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1),
    "reduce_scatter_": ("reduce_scatter", 1),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1),
    "_allgather_base_": ("all_gather", 0),
    "allgather_": ("all_gather", 0),
    "allgather_coalesced_": ("all_gather", 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 0),
    "broadcast_": ("broadcast", 0),
    "reduce_": ("reduce", 0),
    "alltoall_": ("all_to_all", 1),
    "alltoall_base_": ("all_to_all", 1),
    "gather_": ("gather", 0),
    "scatter_": ("scatter", 1),
    "send": ("send", 0),
    "recv_": ("recv", 0),
    "recv_any_source_": ("recv", 0),
}
_FUNCTIONAL: dict[str, tuple[str, int | None]] = {
    "all_reduce": ("all_reduce", 0),
    "all_reduce_": ("all_reduce", 0),
    "all_reduce_coalesced": ("all_reduce", 0),
    "all_reduce_coalesced_": ("all_reduce", 0),
    "all_gather_into_tensor": ("all_gather", None),
    "all_gather_into_tensor_out": ("all_gather", None),
    "all_gather_into_tensor_coalesced": ("all_gather", None),
    "reduce_scatter_tensor": ("reduce_scatter", 0),
    "reduce_scatter_tensor_out": ("reduce_scatter", 0),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", 0),
    "all_to_all_single": ("all_to_all", 0),
    "broadcast": ("broadcast", 0),
    "broadcast_": ("broadcast", 0),
}
_TABLES: dict[str, dict[str, Any]] = {"c10d": _C10D, "_c10d_functional": _FUNCTIONAL}


class Collectives(TorchDispatchMode):
    """Counts collectives between ``begin`` and ``end``; one entry of ``steps`` a step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[Key, Row]] = []

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self.__enter__()

    def end(self) -> None:
        """End the step."""
        self.__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        if name in (table := _TABLES.get(func.namespace, {})):
            op, full = table[name]
            every = (*args, *(kwargs or {}).values())
            self._count(op, list(_tensors(result if full is None else args[full])), _group_size(every))
        return result

    def _count(self, op: str, tensors: list[torch.Tensor], group_size: int) -> None:
        if not tensors or not self.steps:
            return
        key = (op, group_size, str(tensors[0].dtype).removeprefix("torch."))
        row = self.steps[-1].setdefault(key, Row())
        row.calls += 1
        row.bytes += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _group_size(arguments: tuple[Any, ...]) -> int:
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(argument).size()
            except RuntimeError:
                # another boxed argument: the operator of a reduction
                continue
        if isinstance(argument, str) and argument in dist.distributed_c10d._world.pg_names.values():
            return _resolve_process_group(argument).size()  # type: ignore[arg-type]
    raise ValueError(f"no process group among {arguments!r}")
