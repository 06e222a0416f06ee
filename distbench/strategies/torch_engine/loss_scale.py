"""Loss scale of fp16 training, constant or dynamic (Micikevicius et al. 2018, arXiv:1710.03740)."""

from __future__ import annotations

from distbench.core.case import PrecisionConfig

_MIN_SCALE = 1.0
_FACTOR = 2.0


class LossScale:
    """Factor of the losses, so that small gradients do not underflow in fp16.

    A dynamic scale follows DeepSpeed's rule (without hysteresis), so that all engines train alike: an
    overflow halves it, and each window of steps without one doubles it, not counting the first step.
    """

    def __init__(self, precision: PrecisionConfig) -> None:
        self.value = precision.first_loss_scale or 1.0
        self._window = precision.loss_scale_window if precision.is_scaled_dynamically else 0
        self._steps_since_overflow = 0
        """Steps since the last overflow."""

    def update(self, *, overflowed: bool) -> None:
        """Adjust the scale after the gradients of a step."""
        if not self._window:
            return
        self._steps_since_overflow = 0 if overflowed else self._steps_since_overflow + 1
        if overflowed:
            self.value = max(_MIN_SCALE, self.value / _FACTOR)
        elif self._steps_since_overflow > 1 and (self._steps_since_overflow - 1) % self._window == 0:
            self.value *= _FACTOR

    def describe(self) -> dict[str, float | str | None]:
        """Settings as ``effective`` reports them; a scale of 1 changes nothing."""
        if self._window:
            return {"loss_scale": "dynamic", "loss_scale_window": self._window}
        return {"loss_scale": None if self.value == 1 else self.value}
