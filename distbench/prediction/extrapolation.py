"""Steps of measured cases on more devices: the measured step times a ratio of two predicted ones.

An error that both predictions share cancels in the ratio.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from distbench.core.case import Case
from distbench.core.machine import Machine
from distbench.prediction.data_sheet import data_sheet_step
from distbench.prediction.estimates import NORMAL_95, StepPrediction, Term
from distbench.prediction.probed_rates import probed_rates
from distbench.prediction.probed_step import probed_step
from distbench.prediction.step_time import POOLED, TERM_SD
from distbench.record import Record

SAME_WORK, OTHER_WORK = 0.035, 0.085
"""Half of the 90 % interval of a ratio on twice the devices, as a logarithm; it grows with the square root of
the doublings. For devices that keep the samples of their step, and for others: the errors of pairs of
published steps are this large (docs/foresight.md)."""

MAX_INTERVAL_FACTOR = 10
"""Factor between a prediction and an end of its interval, beyond which the prediction says nothing."""
MAX_HALF_LOG_WIDTH = math.log(MAX_INTERVAL_FACTOR)


@dataclass(frozen=True)
class StepRatio:
    """Step of a case on more devices over that on fewer, both predicted from the same source."""

    base: StepPrediction
    """On the fewer devices."""
    target: StepPrediction
    doublings: float
    """Logarithm to base 2 of the ratio of the devices."""
    is_same_work: bool
    """True if each device has the same samples of a step."""

    @property
    def value(self) -> float:
        """The ratio."""
        return self.target.seconds.value / self.base.seconds.value

    @property
    def terms(self) -> dict[Term, float | None]:
        """Ratio of each term; None: the fewer devices have nothing of it."""
        return {
            term: seconds / before if (before := self.base.terms.get(term, 0.0)) else None
            for term, seconds in self.target.terms.items()
            if seconds
        }

    @property
    def scaling_loss(self) -> tuple[Term, float] | None:
        """Term whose device time grows most for the same samples, and its growth as a share of all of it.

        None: no term grows.
        """
        # devices x seconds a sample, of which the devices' own factor is 2 to the doublings
        devices, samples = 2.0**self.doublings, 2.0**self.doublings if self.is_same_work else 1.0
        grown = {
            term: devices * seconds - samples * self.base.terms.get(term, 0.0)
            for term, seconds in self.target.terms.items()
        }
        term = max(grown, key=lambda each: grown[each])
        share = grown[term] / (devices * self.target.seconds.value)
        return (term, share) if share > _LEAST_SCALING_LOSS else None

    @property
    def half_log_width(self) -> float:
        """Half of the 90 % interval of its logarithm.

        From data sheets: what published steps show, or more where terms with uncertain rates gain in weight.
        From a probe: that of a step, as ratios were not compared with measurements.
        """
        if not self.doublings:
            return 0.0
        of_step = math.log(self.target.seconds.high / self.target.seconds.value)
        if self.target.source == "probe":
            return of_step
        usual = (SAME_WORK if self.is_same_work else OTHER_WORK) * math.sqrt(self.doublings)
        # types of GPUs without published steps have wider intervals
        return max(usual * of_step / POOLED, NORMAL_95 * self._shifted_sd())

    def _shifted_sd(self) -> float:
        """Standard deviation of its logarithm from those of the rates, which both steps have in common."""
        shares = [_shares(step.terms) for step in (self.base, self.target)]
        shifts = ((shares[1].get(term, 0.0) - shares[0].get(term, 0.0)) * sd for term, sd in TERM_SD.items())
        return math.hypot(*shifts)


@dataclass(frozen=True)
class Residual:
    """Error of an extrapolation between two measured numbers of devices."""

    from_devices: int
    to_devices: int
    log_ratio: float
    """Logarithm of the extrapolated over the measured step."""

    @property
    def error(self) -> float | None:
        """Extrapolated over measured step, less 1; None: beyond ``MAX_INTERVAL_FACTOR``."""
        return math.expm1(self.log_ratio) if abs(self.log_ratio) <= MAX_HALF_LOG_WIDTH else None

    def half_log_width(self, doublings: float) -> float:
        """The error as a logarithm, for as many *doublings* or more, each of which may repeat it."""
        tested = math.log2(self.to_devices / self.from_devices)
        return abs(self.log_ratio) * max(1.0, doublings / tested)


def step_ratio(
    base: Case, target: Case, machine: Machine, records: Sequence[Record], on: Machine | None = None
) -> StepRatio | str:
    """Step of *target* over that of *base*, the same on fewer devices; or the reason why it can't be told.

    Args:
        machine: Nodes of *base*.
        records: Records with probes, which come before the data sheets of the machines.
        on: Nodes of *target*; None: those of *base*.
    """
    samples = {each.batch.global_batch_size / each.world_size for each in (base, target)}
    doublings, is_same_work = math.log2(target.world_size / base.world_size), len(samples) == 1

    places = (base, machine), (target, on or machine)

    def from_probe(case: Case, machine: Machine) -> StepPrediction | str:
        rates = probed_rates(case, records, machine)
        return rates if isinstance(rates, str) else probed_step(case, rates)

    probed = _both(places, from_probe)
    if not isinstance(probed, str):
        return StepRatio(*probed, doublings, is_same_work)
    published = _both(places, data_sheet_step)
    if not isinstance(published, str):
        return StepRatio(*published, doublings, is_same_work)
    return f"{probed}; {published}"


def _both(
    places: Iterable[tuple[Case, Machine]], predict: Callable[[Case, Machine], StepPrediction | str]
) -> tuple[StepPrediction, StepPrediction] | str:
    """Steps of both cases on their machines, or the reason why one of them is not known as a whole."""
    found: list[StepPrediction] = []
    for case, machine in places:
        step = predict(case, machine)
        if isinstance(step, str):
            return step
        if step.unpredicted_part:
            return f"{step.unpredicted_part} has no rate in a {step.source}"
        found.append(step)
    return found[0], found[1]


def _shares(terms: Mapping[Term, float]) -> dict[Term, float]:
    whole = sum(terms.values())
    return {term: seconds / whole for term, seconds in terms.items()}


_LEAST_SCALING_LOSS = 0.001
"""Share of the device time from which on a loss is worth a word."""
