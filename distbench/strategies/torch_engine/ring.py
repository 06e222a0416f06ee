"""Ring attention of torch: queries stay in place, and all keys and values pass by them.

``torch.distributed.tensor.experimental``, a prototype (2.13): it dispatches only CUDA's kernels of DTensors,
so on CPUs the loop behind it is called with the CPU's kernel.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental._context_parallel import _attention

from distbench.workloads.context import AttentionFunction

# looked up here, so that a torch without one of them is detected before anything runs
_OPTIONS = _attention._cp_options
_DISPATCH = _attention._enable_context_parallel_dispatcher
_RING = _attention._templated_ring_attention
_RING_BACK = _attention._templated_ring_attention_backward

_SEQUENCE_DIM = 2
_FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


class RingAttention:
    """Attention between some positions of each rank and those of all."""

    def __init__(self, mesh: DeviceMesh) -> None:
        """Use the ranks of *mesh*, which share samples."""
        self._mesh = mesh
        _OPTIONS.enable_load_balance = True
        if mesh.device_type != "cpu":
            _DISPATCH()

    def positions_by_rank(self, positions: int) -> torch.Tensor:
        """Positions of each rank (ranks, positions / ranks): a part from the front and one from the back.

        The later a position, the more positions it attends to: so all ranks have equal work.
        """
        parts = torch.arange(positions).view(2 * self._mesh.size(), -1)
        return torch.cat([parts, parts.flip(0)], dim=1)[: self._mesh.size()]

    def wrap(self, attend: AttentionFunction) -> AttentionFunction:
        """*attend* for tensors that torch knows to be split by position; on CPUs replaced by its ring."""
        if self._mesh.device_type == "cpu":
            return _repeat_grouped_heads(partial(_cpu_ring, self._mesh.get_group()))

        def dispatched(*inputs: torch.Tensor) -> torch.Tensor:
            cut = [
                DTensor.from_local(x, self._mesh, (Shard(_SEQUENCE_DIM),), run_check=False) for x in inputs
            ]
            out: Any = attend(*cut)
            local: torch.Tensor = out.to_local()
            return local

        return _repeat_grouped_heads(dispatched)


def _repeat_grouped_heads(ring: AttentionFunction) -> AttentionFunction:
    """*ring* with keys and values repeated for all query heads, since its kernels support no grouped ones."""

    def repeated(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        times = query.shape[1] // key.shape[1]
        return ring(query, key.repeat_interleave(times, dim=1), value.repeat_interleave(times, dim=1))

    return repeated


def _cpu_ring(group: dist.ProcessGroup, *inputs: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = _CpuRing.apply(group, *inputs)
    return out


class _CpuRing(torch.autograd.Function):
    """Torch's loops over the ring, forward and backward, with the CPU's fused attention."""

    @staticmethod
    def forward(
        ctx: Any, group: dist.ProcessGroup, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> torch.Tensor:
        """Causal attention of this rank's queries."""
        out, logsumexp = _RING(group, _SEQUENCE_DIM, _FORWARD, query, key, value, is_causal=True)
        ctx.group = group
        ctx.save_for_backward(query, key, value, out, logsumexp)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        """Gradients of this rank's queries, keys and values."""
        query, key, value, out, logsumexp = ctx.saved_tensors
        found = _RING_BACK(
            ctx.group,
            _SEQUENCE_DIM,
            _BACKWARD,
            gradient,
            "grad_out",
            query,
            key,
            value,
            out,
            logsumexp,
            is_causal=True,
            dropout_p=0.0,
        )
        return None, *found
