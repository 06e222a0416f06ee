"""The application of the command line, and the options that its commands share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from distbench.errors import UsageError

app = typer.Typer(
    name="distbench",
    help="Which parallel strategy should I train with? Fair benchmarks of distributed training.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
)

# typer keeps its exceptions in other places from version to version; this one it exports
REFUSED: type[Exception] = typer.BadParameter.__bases__[0]

Suite = Annotated[Path, typer.Argument(metavar="SUITE", help="A suite's YAML file.", show_default=False)]
MaybeSuite = Annotated[
    Optional[Path], typer.Argument(metavar="[SUITE]", help="A suite's YAML file.", show_default=False)  # noqa: UP045
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or the start of its id.")]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the runs.")]
Set = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field: measure.steps=10.", show_default=False),
]
Only = Annotated[
    list[str],
    typer.Option("--only", metavar="GLOB", help="Keep cases of this name or label.", show_default=False),
]
WorldSizes = Annotated[
    str, typer.Option("--world-sizes", metavar="N,N", help="Numbers of devices.", show_default=False)
]
Device = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="auto, cpu or cuda.", show_default=False)
]
Check = Annotated[bool, typer.Option("--check", help="First check that each case is the same training.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]

REPORTS = Path("reports")


def overrides(
    set_: Sequence[str], only: Sequence[str], world_sizes: str, device: str, *, check: bool = False
) -> Any:
    """Return the ``spec.Overrides`` that these options make.

    Raises:
        UsageError: world sizes that are no numbers.
    """
    from distbench.spec import Overrides

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
        raise UsageError(f"--world-sizes = {text!r}: expected whole numbers, as in 1,2,4")
    return [int(part) for part in parts]
