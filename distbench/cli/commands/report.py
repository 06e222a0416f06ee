"""``distbench report``: the report of a run, rendered again."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from distbench.cli.options import REPORTS, Out, Price, RunName, flag, option
from distbench.cli.output import say
from distbench.cli.readers import reads_runs
from distbench.cli.reading import analysed, priced
from distbench.core.errors import UsageError
from distbench.record import catalog
from distbench.report import lite as lite_page
from distbench.report import page


@reads_runs
def report(
    name: RunName,
    out: Out = REPORTS,
    price: Price = "",
    open_: Annotated[bool, flag("--open", text="Open the report in the browser.")] = False,
    lite: Annotated[
        bool, flag("--lite", text="Write one small file without scripts instead, for mail and pull requests.")
    ] = False,
    png: Annotated[Path | None, option("--png", "DIR", "Also write each chart as a PNG file.")] = None,
) -> int:
    """Re-render a run's report."""
    if lite and png:
        raise UsageError("--lite: its page has no charts for --png; leave one of the two out")
    run = catalog.find(name, out)
    file = (lite_page if lite else page).write(run.folder, priced(analysed(run), price))
    say(str(file))
    if png:
        from distbench.report import chart_images

        for picture in chart_images.write(file, png):
            say(str(picture))
    if open_:
        webbrowser.open(file.resolve().as_uri())
    return 0
