"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distbench.errors import UsageError

if TYPE_CHECKING:
    from distbench.suite import Overrides

Suite = Annotated[Path, typer.Argument(metavar="SUITE", help="Suite file (YAML).", show_default=False)]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Run folder, or the start of a run ID.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder that holds the runs.")]
Set = Annotated[
    list[str],
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a suite key: measure.steps=10.", show_default=False
    ),
]
Only = Annotated[
    list[str],
    typer.Option(
        "--only", metavar="GLOB", help="Only cases whose name or label matches GLOB.", show_default=False
    ),
]
WorldSizes = Annotated[
    str, typer.Option("--world-sizes", metavar="N,N", help="Device counts: 1,2,4.", show_default=False)
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.", show_default=False)
]
Check = Annotated[bool, typer.Option("--check", help="First check each case against its reference.")]
Markdown = Annotated[bool, typer.Option("--md", help="Print Markdown, for a pull request.")]
Csv = Annotated[bool, typer.Option("--csv", help="Print CSV.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress.")]

REPORTS = Path("reports")


def overrides(
    set_: Sequence[str], only: Sequence[str], world_sizes: str, device: str, *, check: bool = False
) -> Overrides:
    """Overrides of a suite from the options of a command.

    Raises:
        UsageError: the world sizes are not numbers.
    """
    from distbench.suite import Overrides

    return Overrides(
        set=set_,
        only=only,
        world_sizes=_sizes(world_sizes),
        device=device or None,
        jobs=["check"] if check else [],
    )


def _sizes(text: str) -> list[int] | None:
    if not text:
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise UsageError(f"--world-sizes = {text!r}: expected whole numbers, such as 1,2,4")
    return [int(part) for part in parts]
