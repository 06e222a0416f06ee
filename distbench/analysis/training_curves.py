"""Curves of a run for experiment trackers: one tracker run for each training or trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from distbench.analysis.case_summary import THROUGHPUT, CaseSummary
from distbench.analysis.job_results import CurvePoint, job_results
from distbench.analysis.losses.case_losses import finite_values
from distbench.core.text import one_line, shorten, strip_control_characters
from distbench.record import Record
from distbench.record.record_reader import untrusted_records
from distbench.system.files import slug

# the strictest limits of the trackers: W&B shows 128 characters of a name, MLflow took 500 of a value
_MAX_NAME_LENGTH, _MAX_VALUE_LENGTH = 100, 250


@dataclass(frozen=True)
class TrainingCurve:
    """Training to a target with one seed, or one measured trial."""

    kind: str
    """Folder of its job's records: ``convergence`` or ``trials``."""
    group: str
    """Display name of the case."""
    name: str
    """The group, with the seed or the number of the trial."""
    folder: str
    """A relative path of safe names, unique in a run."""
    config: dict[str, str | int | float | bool]
    """Configuration and outcome of the training."""
    points: tuple[CurvePoint, ...]


def training_curves(records: Iterable[Record]) -> list[TrainingCurve]:
    """Curves of *records*; records without any, and of kinds that are not installed, are left out.

    Raises:
        RecordError: the parts of a record do not fit together.
    """
    known = {results.kind.name: results for results in job_results().values()}
    shown = [(record, known[record.job.kind]) for record in records if record.job.kind in known]
    with untrusted_records("the curves"):
        made = [(record, results.kind.folder, *results.curve(record)) for record, results in shown]
    return [
        _training_curve(record, folder, title, points) for record, folder, title, points in made if points
    ]


def _training_curve(record: Record, kind: str, title: str, points: Sequence[CurvePoint]) -> TrainingCurve:
    group = one_line(record.case.name, _MAX_NAME_LENGTH) or "unnamed"
    # trainings of one case differ in their seed, and so in their id
    of = record.job.options.of or record.case_id
    return TrainingCurve(
        kind=kind,
        group=group,
        name=f"{group} {title}",
        folder=f"{kind}/{slug(record.case.name)}-{slug(of)}/{slug(title)}",
        config=_config(record),
        points=tuple(points),
    )


def _config(record: Record) -> dict[str, str | int | float | bool]:
    asked, case = record.job.options, record.case.to_json()
    config: dict[str, Any] = {
        "case": case.pop("name"),
        "status": str(record.status),
        "reason": record.reason or None,
        "degraded": record.degraded or None,
        "run": record.run_id,
        "role": asked.role or None,
        "target": getattr(asked, "target", None),
    }
    return _flatten_config({**config, **case})


def _flatten_config(data: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, str | int | float | bool]:
    """Flatten *data* to ``outer.inner`` keys; an option of a plug-in may be any tree."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in data.items():
        here = (*path, slug(str(key)))
        if isinstance(value, dict) and len(here) < 3:
            found |= _flatten_config(value, here)
        elif isinstance(value, bool | int | float):
            found[".".join(here)] = value
        elif value is not None:
            found[".".join(here)] = shorten(strip_control_characters(str(value)), _MAX_VALUE_LENGTH)
    return found


def consumed_per_step(row: CaseSummary) -> dict[str, Sequence[float]]:
    """Consumption after each step of ``row.losses``; empty if unknown.

    ``steps``, ``tokens`` of all ranks together, and ``seconds``, warm-up included: a step takes as long as
    its slowest rank.
    """
    steps, per_step = range(1, len(row.losses) + 1), _tokens_per_step(row)
    seconds = list(accumulate(_step_seconds(row)))
    return {
        "steps": steps,
        "tokens": [] if per_step is None else [per_step * step for step in steps],
        "seconds": seconds if len(seconds) == len(steps) else [],
    }


def _tokens_per_step(row: CaseSummary) -> float | None:
    tokens, samples = row.values.get(THROUGHPUT), row.values.get("samples_per_s")
    if tokens is None or samples is None or samples.value <= 0:
        return None
    # both are means over the same trials, so their ratio is the length of a sample, up to rounding
    return row.case.batch.global_batch_size * round(tokens.value / samples.value, 6)


def _step_seconds(row: CaseSummary) -> list[float]:
    """Seconds of each step, warm-up first; empty if any is unknown."""
    if row.representative_trial is None:
        return []
    warmup, timed = (
        row.representative_trial.samples.get(column, []) for column in ("warmup_step_s", "step_s")
    )
    steps = [*zip(*warmup, strict=False), *zip(*timed, strict=False)]
    known = [finite_values(step) for step in steps]
    return [max(step) for step in known] if list(map(len, known)) == list(map(len, steps)) else []
