"""``convergence``: the loss that the timed steps end with, the norm of the gradients, and skipped steps."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.core.columns import Column, alike
from distbench.metrics.base import Absent, Metric, Session, Values


@dataclass(frozen=True)
class Convergence(Metric):
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
            "Fraction of the timed steps that were skipped, as gradients overflowed under the loss scale.",
        ),
        *alike("", None, "first", per_step=True)(
            grad_norm="Global L2 norm of the reduced gradients before clipping, taken in steps after the "
            "timed window: it shows at once gradients that are scaled wrongly, which Adam hides.",
        ),
    )

    def start(self, session: Session) -> int:
        """Steps that were skipped before the pass."""
        return session.engine.skipped_steps

    def values(self, session: Session, state: int) -> Values:
        if session.grad_norms:
            return {"grad_norm": list(session.grad_norms)}
        if not session.losses:
            return {}
        skipped = (session.engine.skipped_steps - state) / len(session.losses)
        is_scaled = session.case.precision.loss_scale is not None
        return {
            "final_loss": session.losses[-1],
            "skipped_share": skipped if is_scaled else Absent("losses are not scaled (precision.loss_scale)"),
        }
