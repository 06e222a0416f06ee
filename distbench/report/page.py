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

from distbench.analysis.scaling import scaling
from distbench.analysis.summary import CaseSummary, Estimate, summarise
from distbench.analysis.words import sentences
from distbench.errors import InfrastructureError
from distbench.files import write_whole
from distbench.record import Record
from distbench.report import figures
from distbench.store import Run, RunInfo
from distbench.units import value_text

_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST_TEXT = 20_000


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
    charts = figures.charts(cases, scaling(cases))
    script = (_TEMPLATES / "report.js").read_text()
    library = _plotly()
    style = (_TEMPLATES / "report.css").read_text()
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["clip"] = _clip
    environment.filters["cell"] = _cell
    environment.filters["value"] = value_text
    return environment.get_template("report.html").render(
        info=info,
        cases=cases,
        said=sentences(cases),
        charts=charts,
        data=Markup(_safe_json([chart.figure for chart in charts])),
        columns=_columns(cases),
        environment=_environment(records),
        suite=json.dumps(info.suite, indent=2, ensure_ascii=False),
        library=Markup(library),
        script=Markup(script),
        style=Markup(style),
        script_hashes=" ".join([_hash(library), _hash(script)]),
    )


def _columns(cases: Sequence[CaseSummary]) -> dict[str, dict[str, Any]]:
    """Return every column that any record describes: the page knows no metric by name."""
    return {name: column for row in cases for name, column in row.columns.items()}


def _environment(records: Sequence[Record]) -> dict[str, Any]:
    return next((record.environment for record in records if record.environment), {})


def _cell(row: CaseSummary, name: str) -> str:
    estimate: Estimate | None = row.values.get(name)
    if estimate is None:
        return "–"
    text = value_text(estimate.value, row.columns[name]["unit"])
    return text if estimate.spread is None else f"{text} ±{estimate.spread:.1%}"


def _clip(text: str, limit: int = _LONGEST_TEXT) -> str:
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit:,} more characters)"


def _safe_json(data: Any) -> str:
    """Return *data* as JSON that can't end a script element or a line of JavaScript."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _plotly() -> str:
    """Return plotly's library; reading the file is quicker than importing plotly."""

    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    return (Path(folder) / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
