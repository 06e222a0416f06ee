"""``convergence``: the loss that the timed steps end with, and the norm of the gradients."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.metrics.base import Column, Metric, Session, Values, alike


@dataclass(frozen=True)
class Convergence(Metric):
    """Final loss over the global batch, and gradient norm; the loss of each step is kept without it."""

    passes = frozenset({"time", "check"})
    columns = (
        Column(
            "final_loss", "", "lower", "mean", "Loss of the last timed step, the mean over the global batch."
        ),
        *alike("", None, "first", per_step=True)(
            grad_norm="Global L2 norm of the reduced gradients before clipping, taken in steps after the "
            "timed window: it shows at once gradients that are scaled wrongly, which Adam hides.",
        ),
    )

    def values(self, session: Session, state: None) -> Values:
        if session.grad_norms:
            return {"grad_norm": list(session.grad_norms)}
        if not session.losses:
            return {}
        return {"final_loss": session.losses[-1]}
