"""Models that get into trouble on a GPU; suites of tests/gpu name them as ``on_gpu:...``."""

from __future__ import annotations

import os
import signal
import time

import torch
from small import RANK, Small

_AT = 2


class Troubled(Small):
    """Does ``act`` in its third forward pass."""

    def act(self, device: torch.device) -> None:
        raise NotImplementedError

    def trouble(self, calls: int) -> None:
        if calls == _AT:
            self.act(self.embedding.weight.device)


class OutOfMemory(Troubled):
    """Wants a pebibyte of the device."""

    def act(self, device: torch.device) -> None:
        torch.empty(1 << 50, dtype=torch.uint8, device=device)


class OutOfMemoryInRankOne(OutOfMemory):
    """Wants it in rank 1, while the others are in a collective."""

    def act(self, device: torch.device) -> None:
        if RANK == 1:
            super().act(device)


class BuildsLateInRankOne(Small):
    """Rank 1 takes 40 seconds longer than the others to make its first one."""

    is_first = True

    def __init__(self) -> None:
        super().__init__()
        if RANK == 1 and BuildsLateInRankOne.is_first:
            BuildsLateInRankOne.is_first = False
            time.sleep(40)


class PinsTooMuch(Troubled):
    """Wants more pinned host memory than any machine has, so that nothing is taken before it is refused."""

    def act(self, device: torch.device) -> None:
        torch.empty(1 << 46, dtype=torch.uint8, pin_memory=True)


class KilledInAKernel(Troubled):
    """Is killed while the device computes."""

    def act(self, device: torch.device) -> None:
        big = torch.ones(4096 if device.type == "cuda" else 64, 4096, device=device)
        for _ in range(200):
            torch.mm(big, big.T)
        os.kill(os.getpid(), signal.SIGKILL)


class Sleeps(Troubled):
    """Never goes on."""

    def act(self, device: torch.device) -> None:
        time.sleep(600)


class AssertsInAKernel(Troubled):
    """Looks up a row that there isn't: a device-side assertion, after which CUDA is of no use."""

    def act(self, device: torch.device) -> None:
        self.embedding(torch.full((4, 4), 1 << 20, device=device)).sum().item()
