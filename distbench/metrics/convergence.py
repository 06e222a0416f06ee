"""``convergence``: the loss that the timed steps end with, the norm of the gradients, and skipped steps."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import Column, TableColumn, TableSpec, columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, Values

_RANGE = TableSpec(
    "gradient_range",
    "Range of each gradient of a step after the timed window, where gradients are computed in fp16: without "
    "the loss scale, in the order of the model's parameters.",
    (
        TableColumn("tensor", "varchar", "Parameter that it belongs to."),
        TableColumn("largest", "double", "Largest absolute value; null: not finite, it overflowed."),
        TableColumn("zero_share", "double", "Share of its elements that are 0."),
    ),
)


@dataclass(frozen=True)
class ConvergenceMetric(Metric):
    """Final loss over the global batch, gradient norm, and share of skipped steps.

    The loss of each step is kept without it.
    """

    passes = frozenset({"time", "grad_norm"})
    columns = (
        Column(
            "final_loss", "", "lower", "mean", "Loss of the last timed step, the mean over the global batch."
        ),
        Column(
            "skipped_share",
            "",
            "lower",
            "mean",
            (
                "Fraction of the timed steps that were skipped because gradients overflowed under the loss "
                "scale."
            ),
        ),
        *columns_of("", None, "first", per_step=True)(
            grad_norm="Global L2 norm of the reduced gradients before clipping, taken in steps after the "
            "timed window: it reveals wrongly scaled gradients, which Adam hides. Of a script: the norm that "
            "it computes itself, in the timed steps.",
        ),
    )

    tables = (_RANGE,)

    def start(self, context: PassContext) -> int:
        """Return the number of steps that were skipped before the pass."""
        return context.engine.skipped_steps

    def values(self, context: PassContext, state: int) -> Values:
        if context.grad_norms:
            if context.rank == 0 and context.gradient_ranges:
                context.tables[_RANGE.name] = context.gradient_ranges
            return {"grad_norm": list(context.grad_norms)}
        if not context.losses:
            return {}
        skipped = (context.engine.skipped_steps - state) / len(context.losses)
        is_scaled = context.case.precision.loss_scale is not None
        return {
            "final_loss": context.losses[-1],
            "skipped_share": skipped
            if is_scaled
            else NotAvailable("losses are not scaled (precision.loss_scale)"),
        }
