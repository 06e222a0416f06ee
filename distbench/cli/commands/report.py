"""``distbench report``: render the report of a run again."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from distbench.cli.decorators import reads_runs
from distbench.cli.options import DEFAULT_RUNS_FOLDER, OutOption, PriceOption, RunArgument, flag, option
from distbench.cli.output import print_text
from distbench.core.errors import UsageError


@reads_runs
def report(
    name: RunArgument,
    out: OutOption = DEFAULT_RUNS_FOLDER,
    price: PriceOption = "",
    open_: Annotated[bool, flag("--open", text="Open the report in the browser.")] = False,
    lite: Annotated[
        bool, flag("--lite", text="Write a small file without scripts instead, for e-mail and pull requests.")
    ] = False,
    png: Annotated[Path | None, option("--png", "DIR", "Also write each chart as a PNG file.")] = None,
) -> int:
    """Re-render a run's report."""
    from distbench.cli.stored_runs import apply_price, load_run
    from distbench.record import catalog
    from distbench.report import lite as lite_page
    from distbench.report import page

    if lite and png:
        raise UsageError("--lite: its page has no charts for --png; use only one of them")
    run = catalog.find_run(name, out)
    file = (lite_page if lite else page).write(run.folder, apply_price(load_run(run), price))
    print_text(str(file))
    if png:
        from distbench.report import chart_images

        for picture in chart_images.save_chart_images(file, png):
            print_text(str(picture))
    if open_:
        webbrowser.open(file.resolve().as_uri())
    return 0
