"""Published steps of the same training on several numbers of GPUs: the one on more, from that on fewer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from distbench.prediction.extrapolation import StepRatio
from foresight.errors import Errors
from foresight.published_rows import PublishedStep

_SAMPLES = ("micro_batch", "micro_batches")
_CHANGING = ("row", "where", "gpus", "seconds", "assumed", *_SAMPLES)
"""What the steps of a series may differ in."""


@dataclass(frozen=True)
class PublishedPair:
    """Two published steps that differ in the number of GPUs, and in the samples of each if those vary."""

    base: PublishedStep
    """On fewer GPUs."""
    target: PublishedStep
    ratio: StepRatio

    @property
    def factor(self) -> float:
        """Ratio of the GPUs."""
        return self.target.layout.ranks / self.base.layout.ranks

    @property
    def error(self) -> float:
        """Extrapolated over measured step, less 1."""
        return self.base.seconds * self.ratio.value / self.target.seconds - 1

    @property
    def flat_error(self) -> float:
        """The same if each GPU trained on as many tokens/s as on fewer GPUs."""
        return self.target.rate / self.base.rate - 1

    @property
    def is_covered(self) -> bool:
        """True if the measured step is in the interval."""
        return abs(self.log_error) <= self.ratio.half_log_width

    @property
    def log_error(self) -> float:
        return math.log1p(self.error)


def pairs(rows: Iterable[PublishedStep]) -> Iterator[PublishedPair]:
    """Yield all pairs of *rows* that are alike but for the GPUs and their samples."""
    series: dict[tuple[str, ...], list[PublishedStep]] = {}
    for row in rows:
        key = tuple(value for name, value in row.facts.items() if name not in _CHANGING)
        series.setdefault(key, []).append(row)
    for alike in series.values():
        for base, target in itertools.permutations(alike, 2):
            steps = base.predict(), target.predict()
            if base.layout.ranks >= target.layout.ranks or any(isinstance(step, str) for step in steps):
                continue
            doublings = math.log2(target.layout.ranks / base.layout.ranks)
            same = all(base.facts[name] == target.facts[name] for name in _SAMPLES)
            yield PublishedPair(base, target, StepRatio(*steps, doublings, same))  # type: ignore[arg-type]


def errors(found: Iterable[PublishedPair]) -> Errors:
    return Errors(tuple(pair.error for pair in found))


def flat_errors(found: Iterable[PublishedPair]) -> Errors:
    return Errors(tuple(pair.flat_error for pair in found))


def covered(found: Iterable[PublishedPair]) -> int:
    """Number of steps inside their intervals."""
    return sum(pair.is_covered for pair in found)


def covered_without_own_model(found: Sequence[PublishedPair]) -> int:
    """Number of steps inside intervals whose width is from the pairs of other models or GPUs.

    That width is what nine of ten of their errors need, by the root of the doublings, among the pairs with
    the same samples or among the others.
    """
    number = 0
    for pair in found:
        others = sorted(
            _by_root(each)
            for each in found
            if _model(each) != _model(pair) and each.ratio.is_same_work == pair.ratio.is_same_work
        )
        number += _by_root(pair) <= others[math.ceil(0.9 * len(others)) - 1]
    return number


def _by_root(pair: PublishedPair) -> float:
    return abs(pair.log_error) / math.sqrt(pair.ratio.doublings)


def _model(pair: PublishedPair) -> tuple[str, ...]:
    return tuple(pair.base.facts[name] for name in ("model", "gpu"))
