"""``parted``: a model of one's own, and where it can be split and cut into stages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from distbench.workloads.splits import TensorSplits
from distbench.workloads.stages import PipelineStages
from distbench.workloads.user import UserModel

if TYPE_CHECKING:
    from torch import nn

WIDTH, HIDDEN, DEPTH = 16, 32, 2
LAYER = 2 * WIDTH * HIDDEN + HIDDEN + WIDTH


@dataclass(frozen=True)
class Parted(UserModel):
    """The user's ``small:Small``: an embedding, two layers of two linear modules each, and a head."""

    on_meta = True

    model: str = "small:Small"
    """``package.module:callable``; called without arguments it returns the nn.Module."""

    def tensor_splits(self) -> TensorSplits:
        return TensorSplits(
            colwise=("layers.*.up",),
            rowwise=("layers.*.down",),
            embedding="embedding",
            head="head",
            replicated=(),
            divisible_sizes={"hidden": HIDDEN, "classes": self.classes},
            regions=DEPTH,
            layers=DEPTH,
            hidden_size=WIDTH,
            seq_len=self.length,
            vocab_size=self.classes,
            replicated_parameters=0,
            replicated_tensors=0,
        )

    def pipeline_stages(self) -> PipelineStages:
        head = (WIDTH + 1) * self.classes
        return PipelineStages(
            layer_parameters=(LAYER,) * DEPTH,
            embedding_parameters=self.classes * WIDTH,
            head_parameters=head,
            activation_shape=(self.length, WIDTH),
            input_array="input_ids",
        )

    def build_stage(self, module: nn.Module, layers: range) -> nn.Module:
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
