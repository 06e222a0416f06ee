"""The curves of a run, as trackers of experiments take them: a tracker's run for each training or trial."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from distbench.analysis.summary import losses_of
from distbench.analysis.text import one_line, plain, shorten
from distbench.files import slug
from distbench.job import FOLDERS
from distbench.record import Record, Row, Status

# the least that any of the trackers takes: W&B shows 128 characters of a name, MLflow took 500 of a value
_LONGEST_NAME, _LONGEST_VALUE = 100, 250


@dataclass(frozen=True)
class Point:
    """What is known of one step."""

    step: int
    """The first step of a training, or of a trial's warm-up, is 1."""
    values: dict[str, float]
    time: float | None = None
    """Seconds since 1970: when the training began plus its seconds of training until here."""


@dataclass(frozen=True)
class Curves:
    """One training to a target of one seed, or one measured trial."""

    kind: str
    """Folder of its job's records: ``convergence`` or ``trials``."""
    group: str
    """The name of the case, fit to be shown."""
    name: str
    """The same, with the seed or the number of the trial."""
    folder: str
    """A relative path of safe names, another for each of a run."""
    config: dict[str, str | int | float | bool]
    """What was trained, and how it ended."""
    points: tuple[Point, ...]


def curves_of(records: Iterable[Record]) -> list[Curves]:
    """Return what *records* have to draw; those that have nothing are left out."""
    found = []
    for record in records:
        if record.job.kind == "converge":
            points, told = _training(record), f"seed {record.case.seed}"
        elif record.job.kind == "measure" and record.status is Status.MEASURED:
            points, told = _trial(record), f"trial {record.round}"
        else:
            continue
        if points:
            found.append(_curves(record, points, told))
    return found


def _curves(record: Record, points: tuple[Point, ...], told: str) -> Curves:
    kind, group = FOLDERS[record.job.kind], one_line(record.case.name, _LONGEST_NAME) or "unnamed"
    # trainings of one case differ in their seed, and so in their id
    of = str(record.job.options.get("of", record.case_id))
    return Curves(
        kind=kind,
        group=group,
        name=f"{group} {told}",
        folder=f"{kind}/{slug(record.case.name)}-{slug(of)}/{slug(told)}",
        config=_config(record),
        points=points,
    )


def _training(record: Record) -> tuple[Point, ...]:
    merit = f"evaluation/{slug(str(record.job.options.get('merit', {}).get('name', 'value')))}"
    names = {"value": merit, **{key: key for key in ("loss", "grad_norm", "samples", "tokens", "seconds")}}
    began = _epoch(record.started)
    return tuple(
        Point(
            row["step"],
            {name: row[key] for key, name in names.items() if row.get(key) is not None},
            None if began is None else began + row["seconds"],
        )
        for row in record.tables.get("converge_curve", ())
    )


def _trial(record: Record) -> tuple[Point, ...]:
    losses = losses_of(record)
    steps: dict[int, Row] = {
        step: {"loss": loss} for step, loss in enumerate(losses, start=1) if loss is not None
    }
    summary = {f"trial/{slug(name)}": value for name, value in record.values.items() if math.isfinite(value)}
    if summary:
        steps.setdefault(max(len(losses), 1), {}).update(summary)
    return tuple(Point(step, values) for step, values in sorted(steps.items()))


def _config(record: Record) -> dict[str, str | int | float | bool]:
    asked, case = record.job.options, record.case.to_json()
    told: dict[str, Any] = {
        "case": case.pop("name"),
        "status": str(record.status),
        "reason": record.reason or None,
        "degraded": record.degraded or None,
        "run": record.run_id,
        "role": asked.get("role"),
        "target": asked.get("target"),
    }
    return _flat({**told, **case})


def _flat(data: dict[str, Any], path: tuple[str, ...] = ()) -> dict[str, str | int | float | bool]:
    """Return *data* with ``outer.inner`` for keys; an option of a plug-in may be any tree."""
    found: dict[str, str | int | float | bool] = {}
    for key, value in data.items():
        here = (*path, slug(str(key)))
        if isinstance(value, dict) and len(here) < 3:
            found |= _flat(value, here)
        elif isinstance(value, bool | int | float):
            found[".".join(here)] = value
        elif value is not None:
            found[".".join(here)] = shorten(plain(str(value)), _LONGEST_VALUE)
    return found


def _epoch(started: str) -> float | None:
    try:
        return datetime.datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None
