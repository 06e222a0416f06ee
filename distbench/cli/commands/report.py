"""``distbench report``: the report of a run, rendered again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distbench.cli.options import REPORTS, Out, RunName
from distbench.cli.output import say


def report(
    name: RunName,
    out: Out = REPORTS,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
    png: Annotated[
        Path | None, typer.Option("--png", metavar="DIR", help="Also write each chart as a PNG file.")
    ] = None,
) -> int:
    """Re-render a run's report."""
    import webbrowser

    from distbench.analysis.run import AnalysedRun
    from distbench.record import runs
    from distbench.report import page

    run = runs.find(name, out)
    file = page.write(run.folder, AnalysedRun.read(run))
    say(str(file))
    if png:
        from distbench.report import pictures

        for picture in pictures.write(file, png):
            say(str(picture))
    if open_:
        webbrowser.open(file.resolve().as_uri())
    return 0
