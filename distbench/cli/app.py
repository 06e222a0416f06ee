"""Entry point of the command line: arguments in, exit code out.

Each module in ``commands/`` is one command: its function of the same name, with typer's signature. Its
options are all that it imports at its top, so that ``--help`` costs nothing else; functions import what they
work with. Commands that read runs are marked ``decorators.reads_runs``.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from distbench import __version__
from distbench.cli import commands
from distbench.cli.output import discard_stdout, print_error, print_text
from distbench.core.errors import EXIT_INTERRUPTED, DistbenchError

# typer moves its exceptions from version to version; it exports this one
_CLICK_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
# order of the commands in --help; others come last, by name
_ORDER = [
    "init",
    "run",
    "measure",
    "plan",
    "doctor",
    "prepare",
    "launch",
    "attach",
    "list",
    "runs",
    "show",
    "report",
]
_ORDER += [
    "pick",
    "compare",
    "export",
    "adopt",
    "query",
    "check",
    "collectives",
    "probe",
    "gate",
    "calibrate",
]
_ORDER += ["history", "trace", "tune", "extrapolate", "completion"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that can't show a character gets a question mark, not a traceback
            stream.reconfigure(errors="replace")
    try:
        # commands that record their command line take it from their context
        call = ["distbench", *words]
        code = int(_make_app(words)(args=words, prog_name=call[0], obj=call, standalone_mode=False) or 0)
    except _CLICK_USAGE_ERROR as error:
        return _print_usage_error(error)
    except typer.Abort:
        code = EXIT_INTERRUPTED
    except DistbenchError as error:
        print_error(error)
        return error.exit_code
    if code == EXIT_INTERRUPTED:
        discard_stdout()
    return code


def _make_app(words: Sequence[str]) -> typer.Typer:
    """Application with the command that *words* begin with, or with all by name if there is none."""
    app = typer.Typer(
        name="distbench",
        help="Which parallel strategy should I train with? Fair benchmarks of distributed training.",
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root_options)
    files = Path(commands.__file__).parent.glob("[!_]*.py")
    modules = {file.stem.rstrip("_"): file.stem for file in files}
    command = next(iter(words), "")
    if command in modules:
        module = importlib.import_module(f"{commands.__name__}.{modules[command]}")
        settings = getattr(module, "CONTEXT_SETTINGS", None)
        app.command(command, context_settings=settings)(getattr(module, modules[command]))
        return app
    for name in (*_ORDER, *sorted(modules.keys() - set(_ORDER))):
        app.command(name, help=_summary(modules[name]))(_listed)
    return app


def _summary(module: str) -> str:
    """Docstring of the function *module* in the command's file, which is not imported, to save time."""
    text = Path(commands.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    documented = re.search(rf'^def {module}\(.*?^    """(.*?)"""', text, re.DOTALL | re.MULTILINE)
    return documented[1] if documented else ""


def _listed() -> None:
    """Stand-in for a command that is only listed."""


def _version(asked: bool) -> None:
    if asked:
        print_text(f"distbench {__version__}")
        raise typer.Exit


def _root_options(
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_version, help="Print the version."),
    ] = False,
) -> None:
    pass


def _print_usage_error(error: Any) -> int:
    message = error.format_message()
    if message.startswith("Usage:"):
        print_text(message)
    else:
        print_error(message)
    return 2
