"""Predictions of the cases of a plan, before anything is launched."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distbench.cli.probe_runs import find_probe_run, newest_probe_run
from distbench.core.grouping import group_pairs
from distbench.core.machine import Machine
from distbench.core.measurement import MeasureConfig
from distbench.core.units import MISSING_TEXT, format_bytes, format_number
from distbench.plan import Plan
from distbench.plan.memory_capacity import memory_capacity
from distbench.prediction import PredictedValue, memory_advice
from distbench.prediction.cases import CasePrediction, predict_from_data_sheet, predict_from_probe
from distbench.prediction.probed_hardware import hardware_text
from distbench.prediction.probed_rates import PROBE
from distbench.suite.cost import DeviceCost

_COLUMN_TEXTS = {
    "PEAK": "most bytes of tensors alive at once on a rank in a step, by formulas",
    "FITS": "in the memory of a device, or of a node with CPUs",
    "STEP": "length of a step, with the interval that should contain 90 % of measurements",
    "TOKENS/S": "of all devices",
    "MFU": "model FLOPs over the peak of the GPUs",
    "COST": "price of a billion tokens",
}
_HOUR, _BILLION = 3600.0, 1e9


@dataclass(frozen=True)
class PlanPredictions:
    """Predictions of the cases that can run."""

    cases: Mapping[str, CasePrediction]
    """By the ID of the case."""
    source: str
    """Sentence on where the rates are from."""
    cost: DeviceCost | None
    """Price of a device; None: the suite has none."""
    start_s: float | None = None
    """Seconds from the launch of a trial to its first step; None: unknown."""

    def trial_seconds(self, measure: MeasureConfig) -> dict[str, float]:
        """Case ID -> seconds of a trial that is measured as *measure* says, where they are known."""
        if self.start_s is None:
            return {}
        # one more step counts memory and collectives
        steps = 1 + measure.warmup + measure.steps + measure.profile_steps
        steps += measure.check_steps + measure.unsynced_steps
        return {
            case_id: self.start_s + steps * found.step.seconds.value
            for case_id, found in self.cases.items()
            if not isinstance(found.step, str) and not found.step.unpredicted_part
        }

    def columns(self, case_ids: Sequence[str]) -> dict[str, list[str]]:
        """Cells of the cases with *case_ids* for people, by the titles of the columns that have some."""
        rules: dict[str, Callable[[CasePrediction], str]] = {
            "PEAK": _peak_text,
            "FITS": lambda found: found.fits or MISSING_TEXT,
            "STEP": step_text,
            "TOKENS/S": tokens_text,
            "MFU": _mfu_text,
            "COST": self._cost_text,
        }
        cells = {
            title: [rule(self.cases[each]) if each in self.cases else MISSING_TEXT for each in case_ids]
            for title, rule in rules.items()
        }
        return {title: texts for title, texts in cells.items() if {*texts} - {MISSING_TEXT}}

    @property
    def notes(self) -> list[str]:
        """Explanation of the columns, and the reasons for missing values, each once with its cases."""
        shown = self.columns([*self.cases])
        columns = "; ".join(f"{title}: {text}" for title, text in _COLUMN_TEXTS.items() if title in shown)
        currency = f" in {self.cost.currency}" if self.cost and "COST" in shown else ""
        return [
            f"{columns}{currency}. {self.source}" if columns else self.source,
            *self._missing("peak", lambda found: found.memory),
            *self._missing("step", lambda found: found.step),
        ]

    def misfit(self, case_id: str, machine: Machine) -> str:
        """Reason why the case with *case_id* does not fit on *machine*, and what would; empty: it may fit."""
        found = self.cases.get(case_id)
        if found is None or found.fits != "no" or isinstance(found.memory, str):
            return ""
        less = [
            f"{text} needs {format_bytes(peak.value)}" for text, peak in memory_advice(found.case, machine)
        ]
        room = memory_capacity(found.case, machine)
        has = f", and {room.text}" if room else ""
        needs = (
            f"does not fit: by formulas tensors need {format_bytes(found.memory.peak.value)} on a rank{has}"
        )
        return "; ".join([needs, *([", ".join(less)] if less else [])])

    def to_json(self, case_id: str) -> dict[str, Any]:
        """Prediction of the case with *case_id* as ``--json`` prints it."""
        found = self.cases.get(case_id)
        if found is None:
            return {"predicted": None}
        price = self._price(found)
        cost = {"cost_per_billion_tokens": price, "currency": self.cost.currency if self.cost else None}
        return {"predicted": {**prediction_json(found), **cost}}

    def _missing(self, what: str, of: Callable[[CasePrediction], object]) -> list[str]:
        missing = [
            (why, found.case.label) for found in self.cases.values() if isinstance(why := of(found), str)
        ]
        return [
            f"no {what} of {', '.join(dict.fromkeys(labels))}: {why}"
            for why, labels in group_pairs(missing).items()
        ]

    def _cost_text(self, found: CasePrediction) -> str:
        price = self._price(found)
        return MISSING_TEXT if price is None else f"{_bound(found, 'at least ')}{format_number(price)}"

    def _price(self, found: CasePrediction) -> float | None:
        """Price of a billion tokens, at least if a part of the step is lacking; None: unknown."""
        if self.cost is None or found.tokens_per_s is None:
            return None
        hours = _BILLION / _shown(found, found.tokens_per_s) / _HOUR
        return self.cost.per_device_hour * found.case.world_size * hours


def predict_plan(
    planned: Plan, machine: Machine, out: Path, rates: str, cost: DeviceCost | None
) -> PlanPredictions:
    """Predictions of the cases of *planned* that can run on *machine*.

    Args:
        out: Folder of runs.
        rates: Run with a probe; empty: the newest one in *out*, or data sheets for described GPUs.
        cost: Price of a device.

    Raises:
        UsageError: there is no such run, or it has no probe.
    """
    cases = [item.case for item in planned.cases if item.problem is None]
    if machine.gpu_type and not rates:
        predictions = {case.id: predict_from_data_sheet(case, machine) for case in cases}
        return PlanPredictions(predictions, "STEP is from data sheets (docs/foresight.md).", cost)
    run = find_probe_run(rates, out) if rates else newest_probe_run(out)
    records = run.records()
    found = {case.id: predict_from_probe(case, machine, records) for case in cases}
    # a phase of that name without seconds is of a timed trial
    probes = [record for record in records if record.job.kind == PROBE and record.phases.get(PROBE)]
    starts = [record.wall_s - max(record.phases[PROBE]) for record in probes]
    source = f"STEP is from the rates that a probe measured: {run.folder.name}{hardware_text(records)}."
    return PlanPredictions(found, source, cost, statistics.median(starts) if starts else None)


def _peak_text(found: CasePrediction) -> str:
    return MISSING_TEXT if isinstance(found.memory, str) else format_bytes(found.memory.peak.value)


def step_text(found: CasePrediction) -> str:
    """Predicted length of a step for people."""
    if isinstance(found.step, str):
        return MISSING_TEXT
    seconds = found.step.seconds
    return seconds.bound_text if found.step.unpredicted_part else seconds.duration_text


def tokens_text(found: CasePrediction) -> str:
    """Predicted tokens/s of all devices for people."""
    speed = found.tokens_per_s
    if speed is None:
        return MISSING_TEXT
    shown = format_number(_shown(found, speed), (speed.high - speed.low) / 2)
    return f"{_bound(found, 'at most ')}{shown}"


def _mfu_text(found: CasePrediction) -> str:
    mfu = found.mfu
    return MISSING_TEXT if mfu is None else f"{_bound(found, 'at most ')}{_shown(found, mfu):.0%}"


def _shown(found: CasePrediction, rate: PredictedValue) -> float:
    """Value of a *rate* that follows from the step; its high end if the step lacks a part."""
    return rate.high if _bound(found, "at most ") else rate.value


def _bound(found: CasePrediction, word: str) -> str:
    """*word* if the step of *found* lacks a part, so that what follows from it is a bound."""
    return word if not isinstance(found.step, str) and found.step.unpredicted_part else ""


def prediction_json(found: CasePrediction) -> dict[str, Any]:
    """*found* as ``--json`` prints it."""
    return {**_memory_json(found), **_step_json(found)}


def _memory_json(found: CasePrediction) -> dict[str, Any]:
    if isinstance(found.memory, str):
        return {"peak_bytes": None, "peak_reason": found.memory, "fits": found.fits}
    kinds = dict(found.memory.kinds)
    return {"peak_bytes": vars(found.memory.peak), "peak_bytes_by_kind": kinds, "fits": found.fits}


def _step_json(found: CasePrediction) -> dict[str, Any]:
    if isinstance(found.step, str):
        return {"step_s": None, "step_reason": found.step}
    values = {
        "tokens_per_s": found.tokens_per_s,
        "flops_per_device": found.flops_per_device,
        "mfu": found.mfu,
    }
    return {
        # how long what is lacking takes is unknown
        "step_s": {**vars(found.step.seconds), **({"high": None} if found.step.unpredicted_part else {})},
        "step_s_by_term": dict(found.step.terms),
        "step_lacks": found.step.unpredicted_part or None,
        **{name: _rate_json(found, value) for name, value in values.items()},
        "source": found.step.source,
    }


def _rate_json(found: CasePrediction, rate: PredictedValue | None) -> dict[str, float | None] | None:
    """*rate* that follows from the step of *found*; if the step lacks a part, its low end is unknown."""
    return None if rate is None else {**vars(rate), **({"low": None} if _bound(found, "at most ") else {})}
