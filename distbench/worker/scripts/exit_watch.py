"""Watch for the end of a script, however it ends by itself."""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_MAX_ERROR = 2000
"""Characters of an exception in a report: the script's code raised it."""


def watch_exit(finish: Callable[[str], None], note_error: Callable[[str], None]) -> Callable[[], None]:
    """Call *finish* with the way in which the script ends; return the function that stops watching.

    Args:
        note_error: Called with an exception that ends the script, with its file and line.
    """
    leave, show_error = os._exit, sys.excepthook
    raised: list[str] = []

    def exit_now(code: int) -> None:
        finish(f"os._exit({code})")
        leave(code)

    def on_exception(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        place = traceback.extract_tb(trace)[-1:] if trace else []
        where = "".join(f" ({Path(each.filename).name}:{each.lineno})" for each in place)
        raised.append(f"{kind.__name__}: {error}{where}"[:_MAX_ERROR])
        note_error(raised[-1])
        show_error(kind, error, trace)

    def at_exit() -> None:
        finish("the script raised" if raised else "the script ended")

    def restore() -> None:
        # what the script has put in its place since is the script's
        if os._exit is exit_now:
            os._exit = leave
        if sys.excepthook is on_exception:
            sys.excepthook = show_error
        atexit.unregister(at_exit)

    os._exit, sys.excepthook = exit_now, on_exception  # type: ignore[assignment]
    atexit.register(at_exit)
    return restore
