"""``convergence``: the loss that the timed steps end with, the norm of the gradients, and skipped steps."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import Column, columns_of
from distbench.metrics.base import Metric, NotAvailable, PassContext, Values


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
            "timed window: it reveals wrongly scaled gradients, which Adam hides.",
        ),
    )

    def start(self, context: PassContext) -> int:
        """Return the number of steps that were skipped before the pass."""
        return context.engine.skipped_steps

    def values(self, context: PassContext, state: int) -> Values:
        if context.grad_norms:
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
