"""Reduction of DeepSpeed's 1-bit optimizers over gloo: DeepSpeed's own needs cupy and NCCL."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.distributed as dist


class GlooBackend:
    """Replacement for DeepSpeed's ``CompressedBackend``, whose op to pack bits is for Intel's devices.

    The error-compensated reduction of Tang et al. 2021 (arXiv:2102.02888, algorithm 1 and figure 3), with the
    same collectives: DeepSpeed's ``NcclBackend`` (0.19.6), run on a CPU with numpy in place of cupy, produced
    the same weights bit by bit.
    """

    def __init__(self, mpu: object = None) -> None:
        """Reduce over all ranks; *mpu*, which would select fewer, is ``None`` without model parallelism."""
        self.size = dist.get_world_size()

    @torch.no_grad()
    def compressed_allreduce(
        self, buffer: torch.Tensor, worker_error: torch.Tensor, server_error: torch.Tensor, local_rank: int
    ) -> torch.Tensor:
        """Replace *buffer* by the mean over ranks, in signs and scales, and return it.

        *worker_error* (padded elements) is added before the signs are sent, *server_error* (this rank's part
        of them) before those of the mean are; each then receives the error of the signs.
        """
        elements = buffer.numel()
        padding = worker_error.numel() - elements
        exact = torch.nn.functional.pad(buffer.flatten(), (0, padding)).add_(worker_error)
        signs, scale = _compress(exact, worker_error)
        received = torch.empty_like(signs)
        dist.all_to_all_single(received, signs)
        of_ranks = _unpack_signs(received).view(self.size, -1) * self._all_gather(scale).view(-1, 1)
        signs, scale = _compress(of_ranks.mean(0).add_(server_error), server_error)
        of_parts = _unpack_signs(self._all_gather(signs)).view(self.size, -1) * self._all_gather(scale).view(
            -1, 1
        )
        return buffer.copy_(of_parts.flatten()[:elements].view_as(buffer))

    def _all_gather(self, own: torch.Tensor) -> torch.Tensor:
        every = own.new_empty(self.size * own.numel())
        dist.all_gather_into_tensor(every, own)
        return every


def _compress(compensated: torch.Tensor, error: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Signs of *compensated*, eight per byte, and their scale; *error* is set to the compression error."""
    scale = compensated.norm() / math.sqrt(compensated.numel())
    signs = compensated >= 0
    error.copy_(compensated - torch.where(signs, scale, -scale))
    return torch.from_numpy(np.packbits(signs.numpy())), scale.view(1)


def _unpack_signs(signs: torch.Tensor) -> torch.Tensor:
    """1 or -1 for each bit of *signs*."""
    return torch.from_numpy(np.unpackbits(signs.numpy())).float().mul_(2).sub_(1)
