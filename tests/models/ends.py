"""Models that end, or never do, in rank 1 of 2; suites of the tests name them as ``ends:...``."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import time
from pathlib import Path

import torch
from small import RANK, Small
from torch import nn


class InRankOne(Small):
    """Does ``act`` in its forward pass number ``at``, from 0 on."""

    at = 2

    def act(self) -> None:
        raise NotImplementedError

    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == self.at:
            self.act()


class Killed(InRankOne):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class KilledInWarmUp(Killed):
    at = 0


class KilledInCount(Killed):
    """Of a suite with one step of warm-up and three timed ones, as the next."""

    at = 4


class KilledInProfile(Killed):
    at = 5


class Segfaults(InRankOne):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)


class Terminated(InRankOne):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


class Exits(InRankOne):
    def act(self) -> None:
        raise SystemExit(5)


class Interrupted(InRankOne):
    def act(self) -> None:
        raise KeyboardInterrupt


class Stops(InRankOne):
    def act(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class HoldsTheLock(InRankOne):
    """Hangs in C, and no other thread of it gets to run Python."""

    def act(self) -> None:
        while True:
            ctypes.PyDLL(None).sleep(600)


class Ignores(InRankOne):
    """Hangs, and ignores every signal that can be ignored."""

    def act(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(600)


class WaitInVain(Small):
    """Each of two ranks waits for the other to send."""

    def trouble(self, calls: int) -> None:
        if calls == 2:
            torch.distributed.recv(torch.zeros(1), 1 - RANK)


class SetTheClock(Small):
    """From the third forward pass on the wall clock is two hours ahead."""

    def trouble(self, calls: int) -> None:
        if calls == 2:
            right = time.time
            time.time = lambda: right() + 7200


class GivesNothing(Small):
    def forward(self, tokens: torch.Tensor) -> None:  # type: ignore[override]
        return None


class GivesOneRowForAll(Small):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens).mean(dim=0)


class HasMoreInRankOne(Small):
    def __init__(self) -> None:
        super().__init__()
        if RANK == 1:
            self.more = nn.Linear(16, 16)


class HasOtherShapesInRankOne(Small):
    def __init__(self) -> None:
        super().__init__()
        if RANK == 1:
            self.layers[1].up, self.layers[1].down = nn.Linear(16, 48), nn.Linear(48, 16)


class SeesOtherDataInRankOne(Small):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens.flip(1) if RANK == 1 else tokens)


class RemovesItsFolder(InRankOne):
    """Removes what its trial has written so far: the folder of the log that is its standard output."""

    def act(self) -> None:
        shutil.rmtree(Path("/proc/self/fd/1").readlink().parent)


class SpeaksToTheTerminal(InRankOne):
    """Raises with a message that a terminal or a browser would act on."""

    def act(self) -> None:
        raise RuntimeError("\x1b[2J\x00\udcff<script>document.title='taken'</script>")


class PrintsWithoutEnd(InRankOne):
    """Prints until somebody cuts its log, or it has a gibibyte."""

    def act(self) -> None:
        size = 0
        while size <= os.fstat(1).st_size < 1 << 30:
            size = os.fstat(1).st_size
            os.write(1, b"one more line\n" * 100_000)
        raise RuntimeError(f"it stopped when its log had {os.fstat(1).st_size:,} bytes")
