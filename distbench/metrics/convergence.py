"""``convergence``: the loss of each step and the norm of its gradients."""

from __future__ import annotations

from dataclasses import dataclass

from distbench.metrics.base import Column, Metric, Session, Values, alike


@dataclass(frozen=True)
class Convergence(Metric):
    """Loss curve over the global batch, final loss, and gradient norm."""

    passes = frozenset({"time", "check"})
    columns = (
        *alike("", None, "mean", per_step=True)(
            loss="Training loss of a step before its update, the mean over the global batch, in nats; "
            "ranks hold equal shares, so the mean over ranks is the mean over the batch.",
        ),
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
        return {"loss": list(session.losses), "final_loss": session.losses[-1]}
