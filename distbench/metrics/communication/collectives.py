"""Record collectives as they pass torch's dispatcher: DDP's C++ reducer, FSDP, DeepSpeed, DTensor.

Patched functions of torch.distributed miss DDP's reducer; DeepSpeed's own logger sees only
DeepSpeed and makes every operation blocking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from distbench.core.meshes import MeshShape
from distbench.metrics.communication.traffic import CollectiveCall, ranks_text

# (public name, position of the full array among the arguments; None: the result) -> operations
_OPERATIONS: dict[str, dict[tuple[str, int | None], str]] = {
    "c10d": {
        ("all_reduce", 0): "allreduce_ allreduce_coalesced_",
        ("reduce_scatter", 1): "_reduce_scatter_base_ reduce_scatter_ reduce_scatter_tensor_coalesced_",
        (
            "all_gather",
            0,
        ): "_allgather_base_ allgather_ allgather_coalesced_ allgather_into_tensor_coalesced_",
        ("broadcast", 0): "broadcast_",
        ("reduce", 0): "reduce_",
        ("all_to_all", 1): "alltoall_ alltoall_base_",
        ("gather", 0): "gather_",
        ("scatter", 1): "scatter_",
        ("send", 0): "send",
        ("recv", 0): "recv_ recv_any_source_",
    },
    "_c10d_functional": {
        ("all_reduce", 0): "all_reduce all_reduce_ all_reduce_coalesced all_reduce_coalesced_",
        ("all_gather", None): "all_gather_into_tensor all_gather_into_tensor_out "
        "all_gather_into_tensor_coalesced",
        ("reduce_scatter", 0): "reduce_scatter_tensor reduce_scatter_tensor_out "
        "reduce_scatter_tensor_coalesced",
        ("all_to_all", 0): "all_to_all_single",
        ("broadcast", 0): "broadcast broadcast_",
    },
}
_OPERATION_OF = {
    f"{namespace}::{operation}": meaning
    for namespace, meanings in _OPERATIONS.items()
    for meaning, operations in meanings.items()
    for operation in operations.split()
}
# the group of these is both ends; position of the rank of the other end among the arguments
_MESSAGES, _PEER = ("send", "recv"), 2


class CollectiveRecorder(TorchDispatchMode):
    """Record the collectives between ``begin`` and ``end``, in the order in which they are issued."""

    def __init__(self, nodes: Sequence[int], mesh: MeshShape) -> None:
        """Record nothing yet; *nodes* has the node number of each rank, *mesh* their device mesh."""
        super().__init__()
        self._nodes, self._mesh = nodes, mesh
        self._has_multiplied = False
        self.steps: list[list[CollectiveCall]] = []

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: run compiled code unchanged; there are no collectives inside."""
        return True

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append([])
        self._has_multiplied = True
        self.__enter__()

    def end(self) -> None:
        """End the step."""
        self.__exit__(None, None, None)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            # DTensor must first become its collectives, which are then dispatched here
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        if _is_product(func):
            self._has_multiplied = True
        if meaning := _OPERATION_OF.get(func._schema.name):
            op, full = meaning
            every = (*args, *(kwargs or {}).values())
            tensors, ranks = list(_tensors(result if full is None else args[full])), _group_ranks(every)
            if op in _MESSAGES and "any_source" not in func._schema.name:
                here, there = dist.get_rank(), ranks[args[_PEER]]
                self._record(op, tensors, sorted([here, there]), here if op == "send" else there)
            else:
                self._record(op, tensors, ranks)
        return result

    def _record(
        self, op: str, tensors: list[torch.Tensor], ranks: list[int], source: int | None = None
    ) -> None:
        if not tensors or not self.steps:
            return
        elements, size = sum(tensor.numel() for tensor in tensors), len(ranks)
        meets = self._has_multiplied and size > 1
        if meets:
            self._has_multiplied = False
        self.steps[-1].append(
            CollectiveCall(
                op=op,
                group=ranks_text(ranks),
                group_size=size,
                dtype=str(tensors[0].dtype).removeprefix("torch."),
                bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
                elements=elements // size if op == "all_gather" else elements,
                nodes=len({self._nodes[rank] for rank in ranks}),
                source=source,
                dimension=self._mesh.spanned_dimensions(ranks),
                meetings=int(meets),
            )
        )


def _is_product(func: Any) -> bool:
    """True if *func* is an operator that multiplies matrices, an attention or a convolution included."""
    # torch has no formula for the attention of CPUs
    return func._overloadpacket in flop_registry or "_scaled_dot_product" in func._schema.name


def _tensors(value: Any) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _group_ranks(arguments: tuple[Any, ...]) -> list[int]:
    """Global ranks of the process group among *arguments*."""
    return dist.get_process_group_ranks(_group(arguments))


def _group(arguments: tuple[Any, ...]) -> dist.ProcessGroup:
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject):
            try:
                return dist.ProcessGroup.unbox(argument)
            except RuntimeError:
                # a different boxed argument: the operator of a reduction
                continue
        if isinstance(argument, str) and argument in dist.distributed_c10d._world.pg_names.values():
            return _resolve_process_group(argument)  # type: ignore[arg-type]
    raise ValueError(f"no process group among {arguments!r}")
