"""Show what the predictions of a plan would be with other memory, links or numbers of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from distbench.cli.output import align_columns, print_text, wrap_to_terminal
from distbench.cli.plan_predictions import prediction_json, step_text, tokens_text
from distbench.cli.planned_run import PlannedRun
from distbench.core.errors import UsageError
from distbench.core.grouping import group_pairs
from distbench.core.machine import Machine
from distbench.core.text import join_limited
from distbench.core.units import MISSING_TEXT, format_bytes, format_count, format_gb_per_s
from distbench.prediction.cases import CasePrediction
from distbench.prediction.variations import (
    Variation,
    best_cases,
    lacks_only_memory,
    prediction_with_enough_memory,
    variations,
)

_UNITS = {"memory": "B", "inside": "B/s", "between": "B/s", "nodes": "nodes"}
_TEXT = (
    "WHAT IF: one figure of the machine changed: GPU memory, a GPU's bandwidth inside its node or between "
    "nodes, or the number of nodes for the same global batch. CHANGE: in TOKENS/S. LARGEST PART: of the "
    "step. All values are from data sheets; to narrow STEP, run distbench probe SUITE on such GPUs and pass "
    "--rates RUN."
)


@dataclass(frozen=True)
class CaseVariations:
    """A case as it is predicted, and with other figures of the machine."""

    base: CasePrediction
    variations: Sequence[Variation]

    @property
    def predictions(self) -> list[tuple[CasePrediction, str]]:
        """Each prediction, with words for its machine."""
        found = [(each.prediction, f"with {_what_text(each)}") for each in self.variations]
        return [(self.base, "as given"), *((each, what) for each, what in found if not isinstance(each, str))]

    @property
    def has_predictions(self) -> bool:
        """True if a step is known, or other memory or nodes decide whether the case fits."""
        has_step = any(not isinstance(each.step, str) for each, _ in self.predictions)
        fits = {each.fits for each, _ in self.predictions}
        return has_step or len(fits | {"no" for each in self.variations if each.lacks_memory}) > 1


def check_what_if(on: Machine | None, rates: str) -> None:
    """Raise UsageError unless the predictions of a plan for the machine *on* are from data sheets."""
    if rates:
        raise UsageError(
            f"--what-if: the rates of a probe (--rates {rates}) are those of its links, which can't be "
            "varied; leave out --rates"
        )
    if on is None or not on.gpu_type:
        raise UsageError(
            "--what-if: varies figures of data sheets; name GPUs with --on, such as --on h100-sxm:8x8. The "
            "rates of a probe are those of its links, which can't be varied"
        )


def vary_plan(planned: PlannedRun) -> list[CaseVariations]:
    """Variations of the cases that were named, or of the fastest on each number of devices that may fit.

    Of those that were named and can't run, the ones that lack nothing but memory.
    """
    found = {} if planned.predictions is None else {**planned.predictions.cases}
    if not planned.suite.only:
        chosen = best_cases([*found.values()])
    else:
        for item in planned.plan.cases:
            if item.problem and lacks_only_memory(item.case, planned.machine, item.problem):
                found[item.case.id] = prediction_with_enough_memory(item.case, planned.machine)
        chosen = [found[item.case.id] for item in planned.plan.cases if item.case.id in found]
    return [CaseVariations(each, [*variations(each.case, planned.machine)]) for each in chosen]


def print_variations(varied: Sequence[CaseVariations], planned: PlannedRun) -> None:
    """Print *varied*, of *planned*, as a table with notes."""
    if shown := [each for each in varied if each.has_predictions]:
        _print_table(shown, planned.machine)
        texts = [_TEXT]
    else:
        texts = [f"what if: {_nothing_text(varied, is_named=bool(planned.suite.only))}"]
    for text in (*texts, *_reason_texts(varied)):
        print_text("\n" + wrap_to_terminal(text, 0, 2))


def _nothing_text(varied: Sequence[CaseVariations], *, is_named: bool) -> str:
    if varied:
        return "no case that --only names has a predicted step, as given or varied"
    if is_named:
        return "no case that --only names can run there, even with more memory; STATUS has the reasons"
    return "no case has a predicted step and may fit; name cases with --only"


def _print_table(varied: Sequence[CaseVariations], machine: Machine) -> None:
    rows: list[tuple[str, ...]] = [("WHAT IF", "FITS", "STEP", "TOKENS/S", "CHANGE", "LARGEST PART")]
    titles = {}
    for each in varied:
        titles[len(rows)] = each.base.case.name
        rows.append((f"  as given ({_given_text(each.base, machine)})", *_cells(each.base)))
        rows += [(f"  {_what_text(other)}", *_variation_cells(other, each.base)) for other in each.variations]
    print_text("")
    for number, line in enumerate(align_columns(rows)):
        if number in titles:
            print_text(titles[number])
        print_text(line)


def _reason_texts(varied: Sequence[CaseVariations]) -> list[str]:
    """Reasons why cases can't run or lack a value, each once with the cases and what is varied."""
    reasons = group_pairs(
        (why, f"{each.base.case.label} {what}")
        for each in varied
        for why, what in (
            *((found.step, what) for found, what in each.predictions),
            *_unknown_peaks(each),
            *((other.prediction, f"with {_what_text(other)}") for other in each.variations),
        )
        if isinstance(why, str)
    )
    return [f"{join_limited([*dict.fromkeys(which)])}: {why}" for why, which in reasons.items()]


def _unknown_peaks(each: CaseVariations) -> Iterator[tuple[str, str]]:
    """Yield the reasons why it is unknown whether a case fits where its states do, with what is varied.

    None of a case that can run as given: the notes of the plan have them.
    """
    for found, what in each.predictions:
        if each.base.fits == "no" and found.fits is None and isinstance(found.memory, str):
            yield f"its model states fit, but no formula has its peak: {found.memory}", what


def variations_json(varied: Sequence[CaseVariations]) -> list[dict[str, Any]]:
    """Return *varied* as ``--json`` prints it; values that are unknown are null."""
    return [
        {
            "case": each.base.case.name,
            "case_id": each.base.case.id,
            "predicted": prediction_json(each.base),
            "variations": [_variation_json(other, each.base) for other in each.variations],
        }
        for each in varied
    ]


def _variation_json(other: Variation, base: CasePrediction) -> dict[str, Any]:
    failed = isinstance(other.prediction, str)
    return {
        "varied": other.figure,
        "value": other.value,
        "unit": _UNITS[other.figure],
        "world_size": other.case.world_size,
        "predicted": None if isinstance(other.prediction, str) else prediction_json(other.prediction),
        "reason": other.prediction if failed else None,
        "change": other.change(base),
    }


def _given_text(base: CasePrediction, machine: Machine) -> str:
    memory = f"{format_bytes(machine.device_memory)}, " if machine.device_memory else ""
    nodes = -(-base.case.world_size // machine.devices_per_node)
    return f"{memory}{format_count(nodes, 'node')}"


def _what_text(other: Variation) -> str:
    match other.figure:
        case "memory":
            return f"{format_bytes(other.value)} of memory"
        case "nodes":
            return format_count(round(other.value), "node")
    where = "inside a node" if other.figure == "inside" else "between nodes"
    return f"{format_gb_per_s(other.value)} GB/s {where}"


def _variation_cells(other: Variation, base: CasePrediction) -> tuple[str, ...]:
    if isinstance(other.prediction, str):
        fits = "no" if other.lacks_memory else MISSING_TEXT
        return fits, *[MISSING_TEXT] * 4
    change = other.change(base)
    return _cells(other.prediction, MISSING_TEXT if change is None else _percent(change))


def _percent(change: float) -> str:
    text = f"{change:+.0%}"
    return "0%" if text in ("+0%", "-0%") else text


def _cells(found: CasePrediction, change: str = "") -> tuple[str, ...]:
    if found.fits == "no":
        return "no", *[MISSING_TEXT] * 4
    return found.fits or MISSING_TEXT, step_text(found), tokens_text(found), change, _largest_part(found)


def _largest_part(found: CasePrediction) -> str:
    """Largest term of the step, with its share."""
    if isinstance(found.step, str):
        return MISSING_TEXT
    seconds, term = max((seconds, term) for term, seconds in found.step.terms.items())
    return f"{term} {seconds / sum(found.step.terms.values()):.0%}"
