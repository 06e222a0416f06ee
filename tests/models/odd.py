"""Models whose training is hard to compare; suites of the tests name them as ``odd:...``."""

from __future__ import annotations

import copy
import os

import torch
from small import RANK, Block, Small
from torch import nn
from torch.nn import functional


class Dropout(Small):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.drop(super().forward(tokens))


class MaskOfNumbers(Small):
    """Sees earlier tokens through a mask of numbers that are compared with 0, as many decoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.tril(torch.ones(32, 32)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            seen = (x @ x.mT).masked_fill(self.mask == 0, -torch.inf)
            x = layer(x + seen.softmax(dim=-1) @ x)
        return self.head(x)


class RanksPart(Small):
    """Rank 1 skips the first layer, as a model does whose path depends on the data."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers[int(os.environ["RANK"]) :]:
            x = layer(x)
        return self.head(x)


class DrawsInForward(Small):
    """Dropout that no module shows."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(tokens), 0.1)


def drawn_loss(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number that is drawn, whatever the samples."""
    return 0 * module(batch["input_ids"]).mean() + torch.rand(())


class BatchNorm(Small):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        return self.norm(logits.flatten(0, 1)).view_as(logits)


class Synchronised(BatchNorm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.SyncBatchNorm(256)


class OfTwoDtypes(Small):
    def __init__(self) -> None:
        super().__init__()
        self.head.to(torch.bfloat16)


class OfComplexNumbers(Small):
    def __init__(self) -> None:
        super().__init__()
        self.phase = torch.nn.Parameter(torch.ones(16, dtype=torch.complex64))


class Keeping(Small):
    """Keeps the running mean of what it has seen, and takes it off what it sees next."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        logits = self.head(self.layers[1](self.layers[0](x - self.mean.to(x.dtype))))
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean((0, 1)).to(self.mean.dtype), 0.1)
        return logits


class Frozen(Small):
    def __init__(self) -> None:
        super().__init__()
        self.embedding.requires_grad_(False)


class AdaptedBlock(Block):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.requires_grad_(False)
        self.adapter = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        return x + self.adapter(x)


class Adapted(Small):
    """Frozen, but for an adapter at the end of each layer: some shards have nothing that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.layers = nn.ModuleList([AdaptedBlock(16), AdaptedBlock(16)])


class TwoDtypes(Small):
    def __init__(self) -> None:
        super().__init__()
        self.layers.to(torch.bfloat16).requires_grad_(False)


class Unused(Small):
    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(16, 16)


class Tied(Small):
    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.embedding.weight


class TiedLayers(Small):
    """Two layers have one matrix, a third has the head's, and the fourth has all to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(16) for _ in range(4)])
        self.layers[2].up.weight = self.layers[0].up.weight
        self.layers[1].spare = self.head
        self.head.weight = self.embedding.weight


class MadeLater(Small):
    """Goes on with tensors whose modules are made: a row of nothing, and a copy that is trained instead."""

    def __init__(self) -> None:
        super().__init__()
        with torch.no_grad():
            self.embedding.weight[0].zero_()
        self.head.requires_grad_(False)
        self.copied = copy.deepcopy(self.head).requires_grad_()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.copied(x)


class ShapesFromData(Small):
    """Only the tokens that are letters go through the layers: how many that are, the data decides."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        chosen = tokens > 96
        part = x[chosen]
        for layer in self.layers:
            part = layer(part)
        return self.head(x.masked_scatter(chosen.unsqueeze(-1), part))


class TooLargeForOne(Small):
    def trouble(self, calls: int) -> None:
        if os.environ["WORLD_SIZE"] == "1":
            raise torch.OutOfMemoryError("tried to allocate more than there is")


class NotAMeanForOne(TooLargeForOne):
    """Its loss is a mean over the rows and its gradient is not; a reference of one rank doesn't fit."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        output = super().forward(tokens)
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient * len(tokens))
        return output


class TooLargeAtOnce(Small):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        if len(tokens) > 4:
            raise torch.OutOfMemoryError("tried to allocate more than there is")
        return super().forward(tokens)


class DriftsIn16Bits(Small):
    """Scales what it gives, in bf16 alone."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = super().forward(tokens)
        return logits * 1.5 if logits.dtype == torch.bfloat16 else logits


class FailsInFp64(Small):
    """Casts to fp32 inside, as custom kernels do."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.float() if x.dtype == torch.float64 else x)


class FailsInFp64ForTwo(FailsInFp64, TooLargeForOne):
    """A reference of one rank does not fit, and one of two fails in fp64."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.trouble(0)
        return super().forward(tokens)


def over_letters(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """The mean over the letters of a batch: each rank has another number of them."""
    labels = batch["labels"].masked_fill(batch["labels"] < 97, -100)
    return functional.cross_entropy(module(batch["input_ids"]).flatten(0, 1).double(), labels.flatten())


def in_fp32(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy as many write it: whatever the model computes in, the loss is in fp32."""
    return functional.cross_entropy(
        module(batch["input_ids"]).float().flatten(0, 1), batch["labels"].flatten()
    )


def letters(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return (batch["labels"] >= 97).sum()


def sum_over_letters(module: nn.Module, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The same as a sum and a count."""
    labels = batch["labels"].masked_fill(batch["labels"] < 97, -100)
    logits = module(batch["input_ids"]).flatten(0, 1)
    return functional.cross_entropy(logits, labels.flatten(), reduction="sum"), letters(batch)


class OwnMistake(Small):
    """Views what does not lie in one piece, until it is corrected."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        half = tokens[:, : tokens.shape[1] // 2]
        if "CORRECTED" not in os.environ:
            half.view(-1)
        return super().forward(tokens)


def of_the_bare_module(module: Small, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss that reads an attribute which DDP's wrapper does not have."""
    module.head  # noqa: B018
    return in_fp32(module, batch)


class NoConstructor(Small):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, self.width)


class LooksAtItsWeights(Small):
    """Can't be constructed without memory."""

    def __init__(self) -> None:
        super().__init__()
        assert self.head.weight.abs().max().item() > 0


class Wide(nn.Module):
    """One tensor so large that a norm whose squares are added up in fp32 is far off."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1e-3 * torch.randn(WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # each row scales the weights by its own
        return tokens.float().mean(dim=1, keepdim=True) * self.weight


WIDTH = 4_000_000


def half_of_squares(module: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return module(batch["input_ids"]).square().sum(dim=1).mean() / 2


class HasItsVariable(Small):
    """Fails unless ATen, which read its variable as it was first used, computes as the variable says."""

    def trouble(self, calls: int) -> None:
        if RANK == 1:
            asked, found = os.environ["ATEN_CPU_CAPABILITY"], torch.backends.cpu.get_cpu_capability()
            assert asked.upper() == found, f"asked for {asked}, found {found}"


class ChangesItsVariable(Small):
    """Gives one rank another value of a variable, as a library may that sets its own default."""

    def trouble(self, calls: int) -> None:
        if RANK == 1:
            os.environ["ATEN_CPU_CAPABILITY"] = "other"


class HalfEvaluated(Small):
    """Keeps its first layer in evaluation mode, in which it was created."""

    def __init__(self) -> None:
        super().__init__()
        self.layers[0].eval()


class WithConfig(Small):
    """Has a configuration of its own, which nobody can write into."""

    def __init__(self) -> None:
        super().__init__()
        self.config = ("width", 16)
