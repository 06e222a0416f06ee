"""Models that suites of the tests name as ``small:...``; most of them break in one way."""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn

RANK = int(os.environ.get("RANK", "0"))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Small(nn.Module):
    """Bytes in, logits out; calls ``trouble`` with the number of forward passes done."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.layers = nn.ModuleList([Block(16), Block(16)])
        self.head = nn.Linear(16, 256)
        self.calls = 0

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.trouble(self.calls)
        self.calls += 1
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)

    def trouble(self, calls: int) -> None:
        pass


class Steep(Small):
    """In fp16, the gradient of one tensor overflows under a loss scale, and that of another is 0 without."""

    def __init__(self) -> None:
        super().__init__()
        self.steep, self.faint = nn.Parameter(torch.zeros(16)), nn.Parameter(torch.zeros(16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + 1000 * self.steep + 1e-9 * self.faint
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Tuned(Small):
    """Of which only what comes after the first layer is trained, as in fine-tuning."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding.requires_grad_(False)
        self.layers[0].requires_grad_(False)


class Gelu(Small):
    """oneDNN's GELU takes and frees memory by its address alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16), nn.GELU()])


class Uneven(Small):
    """Sizes that two ranks don't divide, two names for one weight, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(16, 256, bias=False)
        self.head.weight = self.embedding.weight
        self.odd = nn.Linear(16, 16)
        self.mix = nn.Parameter(torch.ones(7))
        self.register_buffer("scale", torch.tensor(1.0))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) * self.scale
        for layer in self.layers:
            x = layer(x) * self.mix.mean()
        return self.head(self.odd(x))


class DeviceFull(Small):
    """Holds a large tensor, and runs out of memory in the third forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.ones(1024, 1024)

    def trouble(self, calls: int) -> None:
        if calls == 2:
            raise torch.OutOfMemoryError("tried to allocate more than there is")


class KeepsLogits(Small):
    """Keeps what it gives, for a metric at the end, and in rank 0 a picture for its log."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.pictures = torch.ones(2_000_000 if RANK == 0 else 1).split(1)[:1]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        self.kept.append(logits.detach())
        return logits


class RaisesInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            raise RuntimeError("the dog ate my gradients")


class RaisesAtLength(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            raise RuntimeError("M" * 50_000_000)


class LeavesInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            os._exit(7)


class LeavesQuietlyInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            os._exit(0)


class LeavesQuietly(Small):
    def trouble(self, calls: int) -> None:
        if calls == 2:
            os._exit(0)


class KilledInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            os.kill(os.getpid(), signal.SIGKILL)


class KilledAfterTheWindow(Small):
    """Of a suite with one step of warm-up and five timed ones."""

    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 6:
            os.kill(os.getpid(), signal.SIGKILL)


class HangsInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            time.sleep(600)


class HangsIfAsked(Small):
    """Hangs in rank 1 of 2 while the variable SMALL_HANGS is set: a run is stopped, and then resumed."""

    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2 and "SMALL_HANGS" in os.environ:
            time.sleep(600)


class Changed(Small):
    """What a change of code does to it stands in variables, so that the arms of a gate may differ."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        return logits * float(os.environ["SMALL_SCALES"]) if "SMALL_SCALES" in os.environ else logits

    def trouble(self, calls: int) -> None:
        time.sleep(float(os.environ.get("SMALL_SLEEPS", "0")))
        if "SMALL_RAISES" in os.environ:
            raise RuntimeError("the change broke it")
        if "SMALL_BREAKS_DOWN" in os.environ:
            with torch.no_grad():
                self.head.bias.fill_(float("nan"))


class OutOfMemory(Small):
    def trouble(self, calls: int) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)


class LeaksWithManyRows(Small):
    """Keeps 256 MiB for each micro-batch of more than four rows."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 4:
            self.kept.append(torch.ones(1 << 26))
        return super().forward(tokens)


class RealTimeSignalInRankOne(Small):
    def trouble(self, calls: int) -> None:
        if RANK == 1 and calls == 2:
            os.kill(os.getpid(), 40)


class NotANumber(Small):
    def trouble(self, calls: int) -> None:
        if calls == 4:
            with torch.no_grad():
                self.head.bias.fill_(float("nan"))


class BreaksInRankOne(Block):
    """Puts out NaN in rank 1 of 2 from its fourth forward pass on."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = super().forward(x)
        return x * float("nan") if RANK == 1 and self.calls >= 4 else x


class NotANumberInOneLayer(Small):
    def __init__(self) -> None:
        super().__init__()
        self.layers[1] = BreaksInRankOne(16)


class BreaksGradients(Small):
    """From the third step on the gradients of everything before layer 1 are no numbers; the loss is one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].register_forward_hook(self._spoil)

    def _spoil(self, _module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        if self.calls >= 3 and output.requires_grad:
            output.register_hook(lambda gradient: gradient * float("nan"))
        return output


class LeavesAChildBehind(Small):
    def trouble(self, calls: int) -> None:
        if calls == 0 and os.fork() == 0:
            os.setsid()
            time.sleep(600)


class Pictures(nn.Module):
    """Pictures of three channels and any size in, logits of ten classes out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.layers = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)])
        self.head = nn.Linear(8, 10)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        x = self.stem(pictures)
        for layer in self.layers:
            x = x + layer(torch.relu(x))
        return self.head(x.amax((2, 3)))


class Flat(Pictures):
    """Pictures of 16 x 16 pixels as rows of numbers."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return super().forward(features.reshape(-1, 3, 16, 16))


class Translator(Small):
    """A mean of the source added to each token of the target."""

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.embedding(target) + self.embedding(source).mean(1, keepdim=True)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def raises() -> nn.Module:
    raise KeyError("no such weights")


def no_module() -> str:
    return "a string"
