"""Tensor parallelism by theory: what it needs of a workload, what it moves and keeps. Without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distbench.core import registry
from distbench.core.case import BYTES, Case
from distbench.core.units import multiples_text
from distbench.strategies._offers import not_offered, unfused
from distbench.strategies._undeclared import undeclared
from distbench.strategies.description import ExpectedCollective

if TYPE_CHECKING:
    from distbench.workloads.base import Workload
    from distbench.workloads.splits import Splits


# tried with blocks compiled after they were split, as torchtitan does: tp fails, and fsdp with mesh: {tp: 2}
# trains with a gradient of the embedding that is 0.6 of it off
_UNCOMPILED = (
    "compile is not supported with tensor parallelism: with torch 2.13 the backward pass of compiled layers "
    "that are split fails ('Tensor' object has no attribute '_local_tensor') or gives wrong gradients; use "
    "compile: false"
)


@dataclass(frozen=True)
class TensorParallelism:
    """How the layers of a case are split across *devices* that process the same samples."""

    devices: int
    sequence: bool
    """Activations between layers are split by position."""
    loss: bool
    """The loss is computed from logits that are split by class."""

    @property
    def suffixes(self) -> tuple[str, ...]:
        """What a label says of it."""
        return tuple(name for name, is_on in {"sp": self.sequence, "lp": self.loss}.items() if is_on)

    @property
    def expected(self) -> dict[str, Any]:
        """What ``Engine.effective`` must show of it."""
        return {
            "mesh.tp": self.devices,
            # on one rank nothing is split
            "sequence_parallel": self.sequence and self.devices > 1,
            "loss_parallel": self.loss,
        }

    def problem(self, case: Case) -> str | None:
        """Why *case* can't be trained so, or None if it can."""
        splits = splits_of(case)
        if splits is None:
            return unsplit(case)
        if reason := splits.problem(self.devices):
            return f"tensor parallelism over {self.devices} devices: {reason}"
        if self.sequence and splits.sequence:
            return f"sequence_parallel: {splits.sequence}; use sequence_parallel: false"
        if self.sequence and splits.positions % self.devices:
            return (
                f"sequence_parallel: seq_len = {splits.positions} is not divisible by {self.devices} "
                f"devices; use seq_len: {multiples_text(self.devices, splits.positions)}"
            )
        if case.compile != "none":
            return _UNCOMPILED
        return unfused(case) or not_offered(case, "tensor parallelism")

    def parameters(self, case: Case, parameters: int) -> int:
        """Parameters that a device has of *parameters*: norms whole, of all else its part."""
        if self.devices == 1:
            return parameters
        splits = splits_of(case)
        whole = splits.whole_parameters if splits else 0
        return whole + (parameters - whole) // self.devices

    def collectives(
        self, case: Case, samples: int, norms: float, *, reductions: int = 1, passes: int = 1
    ) -> list[ExpectedCollective]:
        """Collectives of a rank in a step for *samples* rows, over the dimension ``tp``.

        Under sequence parallelism *norms* bytes are reduced for each parameter of a norm, in that many
        *reductions* of each tensor. Each micro-batch goes through in that many *passes*, of some rows each.

        Megatron-LM (arXiv:1909.08053, figure 4): one all-reduce forward and one backward for each region,
        those of the embedding and the head, and the logits. Under sequence parallelism (arXiv:2205.05198,
        figure 5) each is an all-gather and a reduce-scatter of as much. A layer that is computed again
        enters its regions again, and leaves all but its last, where torch stops.
        """
        if self.devices == 1 or (splits := splits_of(case)) is None:
            return []
        positions, element = samples * splits.positions, BYTES[case.precision.compute]
        again = case.activation_checkpointing != "none"
        once = positions * splits.width * element
        entering = leaving = 2 * splits.regions + 2
        if again:
            entering, leaving = entering + splits.regions, leaving + splits.regions - splits.layers
        micro = case.batch.gradient_accumulation_steps * passes
        logits = _Sum() if self.loss else _Sum(positions * splits.classes * element, micro)
        # of each position's maximum, sum and loss, in fp32 at least
        of_loss = _Sum(3 * positions * max(BYTES["fp32"], element), 3 * micro) if self.loss else _Sum()
        enters, leaves = (_Sum(times * once, times * micro) for times in (entering, leaving))
        if not self.sequence:
            sums = {"all_gather": logits, "all_reduce": leaves + of_loss}
        else:
            whole = _Sum(splits.whole_parameters * norms, splits.whole_tensors * reductions)
            sums = {"all_gather": logits + enters, "reduce_scatter": leaves, "all_reduce": whole + of_loss}
        return [
            ExpectedCollective(op, each.bytes, "tp", each.calls) for op, each in sums.items() if each.bytes
        ]


@dataclass(frozen=True)
class _Sum:
    """Bytes and number of some collectives."""

    bytes: float = 0.0
    calls: int = 0

    def __add__(self, other: _Sum) -> _Sum:
        return _Sum(self.bytes + other.bytes, self.calls + other.calls)


def splits_of(case: Case) -> Splits | None:
    """How the model of *case* can be split, if its workload says so."""
    workload: Workload = registry.make("workloads", case.workload)
    return workload.splits()


def unsplit(case: Case) -> str:
    """Why a workload that says nothing of splitting can't be trained so."""
    parts = "which linear layers are split by outputs and which by inputs, its embedding and its head"
    return undeclared(case, "tensor parallelism", parts, "splits()", "transformer", "tp_plan")
