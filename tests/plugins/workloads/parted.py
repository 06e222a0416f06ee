"""``parted``: a model of one's own, and where it can be split and cut into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distbench.workloads.splits import Splits
from distbench.workloads.stages import Stages
from distbench.workloads.user import User

if TYPE_CHECKING:
    from torch import nn

WIDTH, HIDDEN, DEPTH = 16, 32, 2
LAYER = 2 * WIDTH * HIDDEN + HIDDEN + WIDTH


@dataclass(frozen=True)
class Parted(User):
    """The user's ``small:Small``: an embedding, two layers of two linear modules each, and a head."""

    on_meta = True

    model: str = "small:Small"
    """``package.module:callable``; called without arguments it returns the nn.Module."""

    def splits(self) -> Splits:
        return Splits(
            columns=("layers.*.up",),
            rows=("layers.*.down",),
            table="embedding",
            head="head",
            whole=(),
            counts={"hidden": HIDDEN, "classes": self.classes},
            regions=DEPTH,
            layers=DEPTH,
            width=WIDTH,
            positions=self.length,
            classes=self.classes,
            whole_parameters=0,
            whole_tensors=0,
        )

    def stages(self) -> Stages:
        head = (WIDTH + 1) * self.classes
        return Stages(
            layers=(LAYER,) * DEPTH,
            before=self.classes * WIDTH,
            after=head,
            between=(self.length, WIDTH),
            input="input_ids",
        )

    def stage(self, module: nn.Module, layers: range) -> nn.Module:
        from torch import nn

        inside = nn.Sequential()
        for number in layers:
            inside.add_module(str(number), module.get_submodule(f"layers.{number}"))
        stage = nn.Sequential()
        if layers.start == 0:
            stage.add_module("embedding", module.get_submodule("embedding"))
        stage.add_module("layers", inside)
        if layers.stop == DEPTH:
            stage.add_module("head", module.get_submodule("head"))
        return stage

    def layers(self, module: nn.Module) -> list[nn.Module]:
        return list(module.get_submodule("layers").children())
