"""Where the command line begins and ends: arguments in, an exit code out."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import typer

# each registers its commands, in the order of ``--help``
from distbench.cli import commands, gate_commands  # noqa: F401
from distbench.cli.options import REFUSED, app
from distbench.cli.printing import complain, say
from distbench.errors import DistbenchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # a terminal that can't write a character gets a question mark, not a traceback
            stream.reconfigure(errors="replace")
    try:
        return int(app(args=arguments, prog_name="distbench", standalone_mode=False) or 0)
    except REFUSED as error:
        return _usage(error)
    except typer.Abort:
        return 130
    except DistbenchError as error:
        complain(error)
        return error.exit_code


def _usage(error: Any) -> int:
    message = error.format_message()
    if message.startswith("Usage:"):
        say(message)
    else:
        complain(message)
    return 2
