"""Learning-rate schedules: the rate of each update, by one function for every engine.

Warm-up is linear and precedes all of them: update k of W has (k + 1) / W of the rate, as in torchtitan,
so that the first one is not lost. After it

- ``constant`` stays;
- ``linear`` and ``cosine`` fall to the final fraction at ``total_steps`` (cosine: Loshchilov & Hutter 2017,
  arXiv:1608.03983, one period);
- ``wsd`` stays and falls linearly over the last ``decay_steps`` (warmup-stable-decay: Hu et al. 2024,
  arXiv:2404.06395; Hägele et al. 2024, arXiv:2405.18392);
- ``inverse_sqrt`` falls as sqrt(W / (k + 1)) (Vaswani et al. 2017, arXiv:1706.03762, section 5.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from distbench.core.case import OptimizerConfig

FINITE_SCHEDULES = ("linear", "cosine", "wsd")
"""Schedules that fall towards the end of the training, and so need its length."""


def is_scheduled(spec: OptimizerConfig) -> bool:
    """True if the rate ever changes."""
    return spec.schedule != "constant" or spec.warmup_steps > 0


def lr_factor(spec: OptimizerConfig, update: int) -> float:
    """Fraction of the learning rate at *update*; the first update is 0."""
    warm = spec.warmup_steps
    if update < warm:
        return (update + 1) / warm
    after = _DECAYS.get(spec.schedule)
    return after(spec, update) if after else 1.0


def breakpoints(spec: OptimizerConfig) -> list[int]:
    """Updates, sorted, from which on a different formula gives the rate."""
    found = {spec.warmup_steps, *([spec.total_steps or 0] if spec.schedule in FINITE_SCHEDULES else [])}
    if spec.schedule == "wsd":
        found.add(decay_start(spec))
    return sorted(found - {0})


def schedule_text(spec: OptimizerConfig) -> str:
    """The schedule in words: ``cosine to 0.1 at 1000, warm-up 20``."""
    words: str = spec.schedule
    if spec.schedule in FINITE_SCHEDULES:
        words += f" to {spec.final_lr_fraction:g} at {spec.total_steps}"
    if spec.schedule == "wsd":
        words += f" from {decay_start(spec)} on"
    return f"{words}, warm-up {spec.warmup_steps}" if spec.warmup_steps else words


def schedule_problems(spec: OptimizerConfig) -> Iterator[tuple[str, str]]:
    """Yield options that the schedule lacks or does not have, each with the problem and its fix."""
    name, total = spec.schedule, spec.total_steps
    if name in FINITE_SCHEDULES and total is None:
        yield (
            "total_steps",
            f"missing: {name} falls until that update; set it to the number of updates of the real training",
        )
    if name not in FINITE_SCHEDULES:
        asked = {"total_steps": total is not None, "final_lr_fraction": spec.final_lr_fraction != 0}
        for key in (key for key, is_set in asked.items() if is_set):
            yield key, f"schedule = {name} never ends; only {', '.join(FINITE_SCHEDULES)} use it"
    if name == "wsd" and spec.decay_steps is None:
        yield (
            "decay_steps",
            "missing: the number of updates over which wsd falls, often a tenth of total_steps",
        )
    if name != "wsd" and spec.decay_steps is not None:
        yield "decay_steps", f"only wsd uses it, not {name}"
    if total is not None and spec.warmup_steps + (spec.decay_steps or 0) > total:
        yield "total_steps", "must be at least warmup_steps + decay_steps"


def decay_start(spec: OptimizerConfig) -> int:
    """First update of the decay of a finite schedule."""
    if spec.schedule != "wsd":
        return spec.warmup_steps
    return (spec.total_steps or 0) - (spec.decay_steps or 0)


def _linear(spec: OptimizerConfig, update: int) -> float:
    return _interpolate(spec, 1 - _progress(spec, update))


def _cosine(spec: OptimizerConfig, update: int) -> float:
    return _interpolate(spec, 0.5 * (1 + math.cos(math.pi * _progress(spec, update))))


def _inverse_sqrt(spec: OptimizerConfig, update: int) -> float:
    return math.sqrt(max(spec.warmup_steps, 1) / (update + 1))


def _progress(spec: OptimizerConfig, update: int) -> float:
    """Fraction of the decay that is done at *update*, from 0 to 1."""
    begin, end = decay_start(spec), spec.total_steps or 0
    return min(max((update - begin) / max(end - begin, 1), 0.0), 1.0)


def _interpolate(spec: OptimizerConfig, fraction: float) -> float:
    """Interpolate between the final fraction (*fraction* 0) and the full rate (*fraction* 1)."""
    return spec.final_lr_fraction + (1 - spec.final_lr_fraction) * fraction


_DECAYS: dict[str, Callable[[OptimizerConfig, int], float]] = {
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _linear,
    "inverse_sqrt": _inverse_sqrt,
}
