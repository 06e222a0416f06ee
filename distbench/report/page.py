"""``report.html``: one file that opens without a network, made from the records alone.

Everything in it that comes from a suite, a model or a log is hostile text: jinja2 escapes what
stands in the page, and data for the charts goes into JSON blocks in which no tag can begin.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from distbench.analysis.advice import ADVICE
from distbench.analysis.parity import Footnotes, footnotes
from distbench.analysis.summary import CaseSummary, summarise
from distbench.analysis.text import plain, shorten
from distbench.analysis.words import sentences
from distbench.errors import InfrastructureError
from distbench.files import write_whole
from distbench.record import Record, Status, of_kind
from distbench.report.chapters import chapters
from distbench.report.export import document
from distbench.report.picker import picker
from distbench.store import Run, RunInfo
from distbench.units import value_text

_TEMPLATES = Path(__file__).parent / "templates"
_SCRIPTS = ("picker.js", "report.js", "tables.js")
_LONGEST_TEXT = 20_000
_LONGEST_NAME = 200
_MOST_SENTENCES = 40
_DIGITS = 6


def write(run: Run) -> Path:
    """Render the report of *run* into its folder and return the file.

    Raises:
        RecordError: a record is corrupt or of another format.
        InfrastructureError: the file can't be written.
    """
    file = run.folder / "report.html"
    try:
        write_whole(file, render(run.info(), list(run.records())))
    except OSError as error:
        raise InfrastructureError(f"{file}: can't be written: {error.strerror}") from error
    return file


def render(info: RunInfo, records: Sequence[Record]) -> str:
    """Return the page."""
    cases = summarise(info, records)
    # a check trains in deterministic mode, so its surroundings are others
    every = records
    records = of_kind(records, "measure")
    notes = footnotes(cases)
    told = chapters(cases, every)
    columns = {name: column for row in cases for name, column in row.columns.items()}
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    offered = picker(cases)
    library = _plotly()
    page = _environment().get_template("report.html")
    text = page.render(
        info=info,
        cases=cases,
        picker=offered,
        picker_data=Markup(_safe_json(offered.data)),
        said=sentences(cases)[:_MOST_SENTENCES],
        notes=notes,
        chapters=told,
        data=Markup(_safe_json(_rounded({chart.id: chart.figure for each in told for chart in each.charts}))),
        export=Markup(_safe_json(document(info, cases, columns))),
        columns=columns,
        anchors={name: f"column-{place}" for place, name in enumerate(columns, start=1)},
        values=_values(cases, list(columns), notes),
        failed=_by_status(cases),
        advice=ADVICE,
        statuses=_statuses(cases),
        missing=_missing(cases),
        worker=_facts(next((record.environment for record in records if record.environment), {})),
        others=_differing(records),
        machine=_facts(info.machine),
        suite=json.dumps(info.suite, indent=2, ensure_ascii=False),
        library=Markup(library),
        script=Markup(script),
        style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script_hashes=" ".join([_hash(library), _hash(script)]),
    )
    # half a surrogate pair can't be written at all; whatever filter let one pass, the page must be
    return text.encode("utf-8", "replace").decode("utf-8")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"clip": _clip, "name": _name, "parts": _parts, "cell": _cell, "json": _json}
    return environment


def _cell(row: CaseSummary, name: str, unit: bool = True) -> str:
    estimate = row.values.get(name)
    if estimate is None:
        return "–"
    # what stands over a column need not stand in each of its cells
    text = value_text(estimate.value, plain(str(row.columns[name]["unit"])) if unit else "")
    return text if estimate.spread is None else f"{text} ±{estimate.spread:.1%}"


def _clip(text: str, limit: int = _LONGEST_TEXT) -> str:
    """Return *text* without control characters, its end left out if it is very long."""
    shown = plain(text[: 2 * limit])
    left = len(text) - limit
    return shown if left <= 0 else f"{shown[:limit]} … ({left:,} more characters)"


def _name(text: str) -> str:
    return shorten(" ".join(plain(text).split()), _LONGEST_NAME)


def _parts(text: str) -> Markup:
    """Return a case's name, escaped, that a line may break between its parts."""
    return Markup("/<wbr>").join(_name(text).split("/"))


def _missing(cases: Sequence[CaseSummary]) -> list[tuple[str, str, list[str]]]:
    """Return (column, why it has no number, the cases that this is so for)."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in cases:
        if row.measured:
            told = dict(row.absent)
            if row.relative_absent:
                told["× ddp"] = row.relative_absent
            for column, reason in told.items():
                found.setdefault((column, reason), []).append(row.case.name)
    return [(column, reason, names) for (column, reason), names in found.items()]


def _facts(data: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested facts as a flat table: ``packages.torch`` -> ``2.13.0``."""
    flat: dict[str, str] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= _facts(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            flat[f"{prefix}{key}"] = ", ".join(map(str, value)) or "none"
        else:
            flat[f"{prefix}{key}"] = "none" if value is None else str(value)
    return flat


def _differing(records: Sequence[Record]) -> dict[str, list[str]]:
    """Return the facts of the workers that are not the same in all trials, with all their values."""
    seen: dict[str, dict[str, None]] = {}
    for environment in (record.environment for record in records if record.environment):
        for key, value in _facts(environment).items():
            seen.setdefault(key, {})[value] = None
    return {key: list(values) for key, values in seen.items() if len(values) > 1}


def _by_status(cases: Sequence[CaseSummary]) -> dict[str, list[CaseSummary]]:
    """Return the cases of which a trial failed by how it ended."""
    found: dict[str, list[CaseSummary]] = {}
    for row in cases:
        if row.failed and row.status != Status.UNSUPPORTED:
            found.setdefault(row.worst, []).append(row)
    return found


def _statuses(cases: Sequence[CaseSummary]) -> dict[str, int]:
    """Return the words that the table shows as status, with the number of cases that have each."""
    found: dict[str, int] = {}
    for row in cases:
        word = "differs" if row.differs else row.status
        found[word] = found.get(word, 0) + 1
    return found


def _values(cases: Sequence[CaseSummary], names: list[str], notes: Footnotes) -> list[list[str]]:
    """Return the rows of the table of all values, the name of the case first."""
    return [
        [row.case.name, notes.marks.get(row.case.id, ""), *(_cell(row, name) for name in names)]
        for row in cases
        if row.measured
    ]


def _json(data: Any) -> Markup:
    return Markup(_safe_json(data))


def _safe_json(data: Any) -> str:
    """Return *data* as JSON that can't end a script element or a line of JavaScript."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _rounded(data: Any) -> Any:
    """Return *data* with as many digits as a chart can show: the rest is most of the size of a large page."""
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}")
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list | tuple) else data


def _plotly() -> str:
    """Return plotly's library; reading the file is quicker than importing plotly."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    return (Path(folder) / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
