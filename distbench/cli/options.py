"""Shared options of commands, and the declaration and check of options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from distbench.core.errors import UsageError, did_you_mean

if TYPE_CHECKING:
    from distbench.suite import Overrides

T = TypeVar("T")

DEFAULT_RUNS_FOLDER = Path("reports")


def option(name: str, value: str, text: str, *, has_default: bool = False) -> Any:
    """Option *name* whose help shows its *value* and *text*, and the default if it has one."""
    return typer.Option(name, metavar=value, help=text, show_default=has_default)


def flag(*names: str, text: str) -> Any:
    """Option without a value whose help shows *text*."""
    return typer.Option(*names, help=text)


def argument(value: str, text: str) -> Any:
    """Argument, called *value* in the help."""
    return typer.Argument(metavar=value, help=text, show_default=False)


SuiteArgument = Annotated[Path, argument("SUITE", "Suite file (YAML).")]
RunArgument = Annotated[str, argument("RUN", "Run folder, or the start of a run ID.")]
OutOption = Annotated[Path, option("--out", "DIR", "Folder that holds the runs.", has_default=True)]
SetOption = Annotated[list[str], option("--set", "KEY=VALUE", "Override a suite key: measure.steps=10.")]
OnlyOption = Annotated[list[str], option("--only", "GLOB", "Only cases whose name or label matches GLOB.")]
WorldSizesOption = Annotated[str, option("--world-sizes", "N,N", "Device counts: 1,2,4.")]
DeviceOption = Annotated[str, option("--device", "DEVICE", "auto, cpu or cuda.")]
OnOption = Annotated[str, option("--on", "LAUNCHER", "Engine to submit the run to, such as slurm.")]
PlannedOnOption = Annotated[
    str,
    option(
        "--on",
        "LAUNCHER",
        "Engine to submit the run to, such as slurm; or GPUs to plan for: h100-sxm:8x8 (8 nodes of 8) or "
        "machine.yaml.",
    ),
]
NodesOption = Annotated[int | None, option("--nodes", "N", "With --on: number of nodes to request.")]
GpusPerNodeOption = Annotated[
    int | None,
    option("--gpus-per-node", "N", "Plan for --nodes (1) nodes with N GPUs each, not for this machine."),
]
SourceOption = Annotated[
    str, option("--from", "FROM", "Measured script, or file of another framework, to compare.")
]
ModelOption = Annotated[
    str, option("--model", "MODEL", "Preset of the transformer, or package.module:callable.")
]
DatasetOption = Annotated[
    str, option("--data", "DATASET", "package.module:callable that returns your dataset.")
]
CheckOption = Annotated[bool, flag("--check", text="First check each case against its reference.")]
MarkdownOption = Annotated[bool, flag("--md", text="Print Markdown, for a pull request.")]
CsvOption = Annotated[bool, flag("--csv", text="Print CSV.")]
JsonOption = Annotated[bool, flag("--json", text="Print JSON.")]
PriceOption = Annotated[str, option("--price", "PRICE", "Price per device-hour: '2.5 USD'.")]
QuietOption = Annotated[bool, flag("--quiet", "-q", text="Hide progress.")]


def make_overrides(
    set_: Sequence[str],
    only: Sequence[str],
    world_sizes: str,
    device: str,
    *,
    check: bool = False,
    on: str = "",
    option_of: Mapping[str, str] = MappingProxyType({}),
) -> Overrides:
    """Overrides of a suite from the options of a command.

    Args:
        option_of: Setting in *set_* -> its option, if that is not ``--set``.

    Raises:
        UsageError: the world sizes are not numbers.
    """
    from distbench.suite import Overrides

    sizes, jobs = parse_option("--world-sizes", world_sizes, parse_counts), ["check"] if check else []
    return Overrides(set_, only, sizes, device or None, jobs, on, option_of)


def parse_option(name: str, text: str, parse: Callable[[str], T]) -> T | None:
    """Apply *parse* to the *text* of option *name*; None if it is empty.

    Raises:
        UsageError: *parse* raised ValueError.
    """
    try:
        return parse(text) if text else None
    except ValueError as error:
        raise UsageError(f"{name} = {text!r}: {error}") from None


def check_choice(name: str, word: str, allowed: Iterable[str]) -> None:
    """Raise UsageError unless *word* is one of the words *allowed* for option *name*."""
    if word not in allowed:
        raise UsageError(f"{name} = {word!r}: {did_you_mean(word, allowed)}")


def check_exclusive(command: str, **forms: bool) -> None:
    """Raise UsageError if more than one of the *forms* of output is requested."""
    if sum(forms.values()) > 1:
        names = [f"--{name}" for name in forms]
        raise UsageError(f"{command}: use only one of {', '.join(names[:-1])} and {names[-1]}")


def parse_counts(text: str) -> list[int]:
    """Whole numbers in *text*, between commas.

    Raises:
        ValueError: there is something else.
    """
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise ValueError("expected whole numbers, such as 1,2,4")
    return [int(part) for part in parts]
