"""Models whose step a trace on fake tensors can't finish; suites of the tests name them ``traced:...``."""

from __future__ import annotations

import os
import signal

import torch
from small import Small


class ValueReader(Small):
    """Reads a value of its input, as a model with early exits does."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if tokens.max().item() > 1000:
            raise ValueError("no such token")
        return super().forward(tokens)


class Refusing(Small):
    def trouble(self, calls: int) -> None:
        raise ValueError("this model refuses\nas its second line says")


class Killed(Small):
    def trouble(self, calls: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
