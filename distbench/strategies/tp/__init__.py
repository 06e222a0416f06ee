"""``tp``: tensor parallelism of torch, each layer cut over all ranks (Megatron-LM, arXiv:1909.08053)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from distbench import registry
from distbench.case import BYTES, Case
from distbench.env import Machine
from distbench.strategies._model_states import state_problem, zero_table
from distbench.strategies.base import Engine, Setting, Strategy
from distbench.strategies.description import PORTIONS, SHARDING, Card, Meaning, points
from distbench.strategies.tp.card import PLAIN, SEQUENCE

if TYPE_CHECKING:
    from distbench.workloads.base import Workload
    from distbench.workloads.splits import Splits


@dataclass(frozen=True)
class TensorParallel(Strategy):
    """Tensor parallelism: every layer is cut over all ranks, which work on the same rows together."""

    engine = "TensorParallelEngine"
    early = ("distbench.strategies.tp.engine",)
    settings: ClassVar[Mapping[str, Meaning]] = {
        **points(SHARDING, "mesh", "split_tensors"),
        **points(PORTIONS, "sequence_parallel", "loss_parallel"),
    }

    sequence_parallel: bool = False
    """Cut what is between the layers too, by positions: as many bytes in all-gathers and reduce-scatters as
    otherwise in all-reduces, and less memory of activations (Korthikanti et al., arXiv:2205.05198)."""
    loss_parallel: bool = False
    """Compute the loss from logits that stay cut by classes, rather than gather them."""

    @property
    def label(self) -> str:
        options = {"sp": self.sequence_parallel, "lp": self.loss_parallel}
        return "+".join(["tp", *(name for name, is_on in options.items() if is_on)])

    @property
    def simplicity(self) -> int:
        # behind plain sharding: it changes the model's layers, and who sees which rows
        return 40 + self.sequence_parallel + self.loss_parallel

    @property
    def card(self) -> Card:
        return SEQUENCE if self.sequence_parallel else PLAIN

    @classmethod
    def variants(cls) -> tuple[Strategy, ...]:
        return cls(), cls(sequence_parallel=True)

    def data_ranks(self, ranks: int) -> int:
        return 1

    def problem(self, case: Case, machine: Machine) -> str | None:
        splits = _splits(case)
        if splits is None:
            return self.unsplit(case)
        if reason := splits.problem(case.world_size):
            return f"tensor parallelism over {case.world_size} devices: {reason}"
        if self.sequence_parallel and splits.positions % case.world_size:
            return (
                f"sequence_parallel: rows of {splits.positions} positions can't be divided by "
                f"{case.world_size} devices"
            )
        return self._not_offered(case) or state_problem(case, "rows", self.label)

    def _not_offered(self, case: Case) -> str | None:
        """What this strategy is not offered with, or None."""
        if case.optimizer.name == "sgd" and case.optimizer.kernel == "fused":
            return "torch has no fused SGD for sharded tensors; set optimizer.kernel: foreach"
        if case.compile != "none":
            return "compile is not offered with tensor parallelism; use compile: false"
        if case.precision.float8 != "none":
            return "float8 is not offered with tensor parallelism; use precision: bf16"
        return None

    def unsplit(self, case: Case) -> str:
        """Why a workload that says nothing of splitting can't be trained so."""
        return (
            f"tensor parallelism: the workload {case.workload.name} does not say how its layers are split; "
            "use transformer, or a plug-in with Workload.splits"
        )

    def expected(self, case: Case) -> dict[str, Any]:
        return {
            "mesh.tp": case.world_size,
            # on one rank nothing is cut
            "sequence_parallel": self.sequence_parallel and case.world_size > 1,
            "loss_parallel": self.loss_parallel,
        }

    def collectives(self, case: Case, parameters: int) -> dict[str, float] | None:
        # Megatron-LM, figure 4: one all-reduce forward and one backward for each region, and those of the
        # embedding and the head; under sequence parallelism each is a gather and a scatter of as much
        splits = _splits(case)
        if case.world_size == 1 or splits is None:
            return {}
        positions = case.batch.global_batch_size * splits.positions
        element = BYTES[case.precision.compute]
        between = (2 * splits.regions + 2) * positions * splits.width * element
        sizes = {"all_gather": 0.0 if self.loss_parallel else positions * splits.classes * element}
        if self.sequence_parallel:
            sizes["all_gather"] += between
            sizes["reduce_scatter"] = between
            sizes["all_reduce"] = splits.whole_parameters * BYTES[case.precision.master]
        else:
            sizes["all_reduce"] = between
        if self.loss_parallel:
            # maximum, sum and loss of each position, in fp32 at least
            sizes["all_reduce"] += 3 * positions * max(4, element)
        return {op: size for op, size in sizes.items() if size}

    def model_states(self, case: Case, parameters: int) -> dict[str, float]:
        splits = _splits(case)
        whole = splits.whole_parameters if splits else 0
        mine = whole + (parameters - whole) // case.world_size
        return zero_table(case, mine, stored=case.precision.master)

    def build(self, setting: Setting) -> Engine:
        from distbench.strategies.tp.engine import build_tp

        return build_tp(self, setting)


def _splits(case: Case) -> Splits | None:
    workload: Workload = registry.make("workloads", case.workload)
    return workload.splits()
