"""One-line texts for build errors: of a compiler's output, the line with the error."""

from pathlib import Path

from distbench.core.errors import UnsupportedCase
from distbench.core.text import compiler_error_line
from distbench.metrics.base import NotAvailable
from distbench.system.build_cache import NativeLibraryError
from distbench.system.machine import cache_folder

_DISK_FULL_TEXT = "No space left on device"


def build_error_text(error: Exception) -> str:
    """Describe to the user an *error* that was raised during a build."""
    cache = cache_folder()
    if isinstance(error, OSError) and error.filename and Path(error.filename).is_relative_to(cache):
        problem = f"can't write to the cache {cache} ({error.strerror})"
        return f"{problem}; set DISTBENCH_CACHE to a writable folder with free space"
    text = str(error)
    # these are sentences already
    kind = (
        ""
        if isinstance(error, NotAvailable | NativeLibraryError | UnsupportedCase)
        else f"{type(error).__name__}: "
    )
    advice = f"; free some space, or set DISTBENCH_CACHE (now {cache}) to another disk"
    return f"{kind}{compiler_error_line(text)}{advice if _DISK_FULL_TEXT in text else ''}"
