"""One line on why something could not be built: of a compiler's output, the line that says what is wrong."""

from pathlib import Path

from distbench.core.errors import Refused
from distbench.core.text import telling_line
from distbench.metrics.base import Absent
from distbench.system.build_cache import LibraryError
from distbench.system.machine import cache_folder

_FULL = "No space left on device"


def reason(error: Exception) -> str:
    """What *error*, raised while something was built, means to the user."""
    cache = cache_folder()
    if isinstance(error, OSError) and error.filename and Path(error.filename).is_relative_to(cache):
        problem = f"the cache {cache} can't be written ({error.strerror})"
        return f"{problem}; set DISTBENCH_CACHE to a folder that can, and has room"
    text = str(error)
    # these are sentences already
    kind = "" if isinstance(error, Absent | LibraryError | Refused) else f"{type(error).__name__}: "
    advice = f"; free some space, or set DISTBENCH_CACHE (now {cache}) to another disk"
    return f"{kind}{telling_line(text)}{advice if _FULL in text else ''}"
