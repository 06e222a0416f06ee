"""One line on why something could not be built: of a compiler's output, the line that says what is wrong."""

import re
from pathlib import Path

from distbench.env import cache_folder
from distbench.libraries import LibraryError
from distbench.metrics.base import Absent

_FULL = "No space left on device"
_TELLING = re.compile(rf"\b(error|fatal|ld): |{_FULL}", re.IGNORECASE)
# of the compiler's driver and of ninja: that a part of them failed
_SUMMARY = re.compile(r"collect2: |ninja: build stopped|FAILED: ")


def reason(error: Exception) -> str:
    """What *error*, raised while something was built, means to the user."""
    cache = cache_folder()
    if isinstance(error, OSError) and error.filename and Path(error.filename).is_relative_to(cache):
        problem = f"the cache {cache} can't be written ({error.strerror})"
        return f"{problem}; set DISTBENCH_CACHE to a folder that can, and has room"
    text = str(error)
    # these are sentences already
    kind = "" if isinstance(error, Absent | LibraryError) else f"{type(error).__name__}: "
    advice = f"; free some space, or set DISTBENCH_CACHE (now {cache}) to another disk"
    return f"{kind}{telling_line(text)}{advice if _FULL in text else ''}"


def telling_line(text: str) -> str:
    """The line of *text*, an error with a compiler's output in it, that says what is wrong.

    What stands before the output is kept. A text without such a line is returned as it is.
    """
    lines = [line.strip() for line in text.splitlines()]
    telling = [line for line in lines if _TELLING.search(line) and not _SUMMARY.match(line)]
    # the first line names what was built; it may hold the first line of the output as well
    if len(lines) < 2 or not telling:
        return text
    return telling[0] if telling[0] == lines[0] else f"{lines[0].partition(': ')[0]}: {telling[0]}"
