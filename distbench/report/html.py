"""Render a self-contained HTML page that opens without a network and runs only its own scripts.

Everything in it that comes from a suite, a model or a log is hostile text: jinja2 escapes the text of the
page, and data for the charts goes into JSON blocks in which no tag can start.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from distbench.core.text import shorten, strip_control_characters
from distbench.core.units import format_count
from distbench.tables.foreign_text import PERFETTO_URL
from distbench.tables.table import Table
from distbench.views.base import View
from distbench.views.charts.figures import Chart

if TYPE_CHECKING:
    import jinja2

_TEMPLATES = Path(__file__).parent / "templates"
_MAX_TEXT_LENGTH = 20_000
_MAX_NAME_LENGTH = 200
_DIGITS = 6


@dataclass(frozen=True)
class Chapter:
    """A section of the page: charts, and a table of everything behind them."""

    id: str
    title: str
    charts: Sequence[Chart]
    table: Table | None
    table_collapsed: bool = False
    """True if the table opens only on request."""
    data_table: Table | None = None
    """All numbers of the view, even if the page has no table of them."""
    template: str = View.template
    content: Any = None
    """Data for the template besides charts and table."""
    collapsed: bool = False
    """True if only its heading and summary show until a reader opens it."""
    summary: str = ""
    """Sentence next to its heading while it is collapsed."""
    has_warning: bool = False
    """True if its notes warn, so they stay open."""
    prints_table: bool = False
    """True if paper has its table, although the page collapses it below charts."""


def render(
    template: str,
    chapters: Sequence[Chapter],
    *,
    scripts: Sequence[str] = (),
    blocks: Mapping[str, Any] = {},
    packed: Mapping[str, Any] = {},
    **context: Any,
) -> str:
    """Render *template* with *chapters* and *context*.

    *scripts* are files next to the templates in addition to those of every page. *blocks* is the data that
    they find by the id of a script element; *packed* is such data that few readers need, compressed.
    """
    files = [_TEMPLATES / name for name in ("packed.js", *scripts, "pairs.js", "report.js", "tables.js")]
    script = "".join(_without_indentation(file) for file in files)
    library, compressed = _plotly()
    more = {key: _packed(data) for key, data in packed.items()}
    figures = {chart.id: chart.figure for chapter in chapters for chart in chapter.charts}
    return render_static(
        template,
        chapters=chapters,
        blocks={"chart-data": _rounded(figures), **blocks},
        packed={"library": compressed, **more},
        script=Markup(script),
        script_hashes=" ".join([_hash(library), _hash(script)]),
        **context,
    )


def render_static(template: str, **context: Any) -> str:
    """Render *template* with *context*; without a ``script`` in it, the page may run none."""
    without = {"blocks": {}, "packed": {}, "script": "", "script_hashes": "'none'"}
    style = Markup(_without_indentation(_TEMPLATES / "report.css"))
    text = _environment().get_template(template).render(**without | {"style": style} | context)
    # half a surrogate pair can't be written at all; the page must be written even if a filter let one pass
    return text.encode("utf-8", "replace").decode("utf-8")


@functools.cache
def _environment() -> jinja2.Environment:
    """Template environment that compiles each template once: a run with further rounds writes many pages."""
    # imported when a page is written: help needs no templates
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {
        "clip": _clip,
        "name": _name,
        "parts": _parts,
        "json": _json,
        "packed": _packed,
        "linked": _link_addresses,
        "counted": format_count,
    }
    return environment


def _clip(text: str, limit: int = _MAX_TEXT_LENGTH) -> str:
    """*text* without control characters, cut if it is very long."""
    shown = strip_control_characters(text[: 2 * limit])
    left = len(text) - limit
    return shown if left <= 0 else f"{shown[:limit]} … ({left:,} more characters)"


def _name(text: str) -> str:
    return shorten(" ".join(strip_control_characters(text).split()), _MAX_NAME_LENGTH)


def _parts(text: str) -> Markup:
    """Name of a case, escaped, with possible line breaks between its parts."""
    return Markup("/<wbr>").join(_name(text).split("/"))


def _link_addresses(text: str) -> Markup:
    """*text*, escaped, with the one address in it that may be a link."""
    link = f'<a href="{PERFETTO_URL}" rel="noreferrer">{PERFETTO_URL}</a>'
    return Markup(str(escape(text)).replace(PERFETTO_URL, link))


def _json(data: Any) -> Markup:
    """Encode *data* as JSON that can't end a script element or a line of JavaScript."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _packed(data: Any) -> str:
    """Encode *data* as compressed JSON, which ``unpacked`` of the scripts reads."""
    return _compress(_json(data).encode())


def _rounded(data: Any) -> Any:
    """Round *data* to the digits that a chart can show: the rest would be most of a large page."""
    if isinstance(data, float):
        return float(f"{data:.{_DIGITS}g}")
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    return [_rounded(value) for value in data] if isinstance(data, list | tuple) else data


@functools.cache
def _plotly() -> tuple[str, str]:
    """Plotly's library, plain and compressed; reading the file is faster than importing plotly."""
    spec = importlib.util.find_spec("plotly")
    assert spec is not None and spec.submodule_search_locations
    (folder,) = spec.submodule_search_locations
    library = (Path(folder) / "package_data" / "plotly.min.js").read_bytes()
    return library.decode(), _compress(library)


def _compress(content: bytes) -> str:
    # uncompressed, it would be most of the page; the browser unpacks it faster than it runs it
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def _without_indentation(file: Path) -> str:
    """Text of a script or a style sheet without indentation, which would be repeated in every page."""
    return "".join(line.lstrip() for line in file.read_text(encoding="utf-8").splitlines(keepends=True))


def _hash(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"'sha256-{digest}'"
