"""Report inconsistent records as record errors.

Their parts have the right types but do not fit together: they are from another tool, or were changed by
hand. Or distbench misreads its own: from here the two look alike, so the message leaves both open.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distbench.core.errors import RecordError

_PACKAGE = Path(__file__).parents[1]
# exceptions that code which relies on distbench's own records raises on others
_MISFIT_ERRORS = (
    *(TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, RecursionError),
)
_ADVICE = (
    "run distbench check RUN. If the files are sound, this is a bug in distbench: please report it "
    "with this line and, if possible, the run's folder"
)


@contextmanager
def untrusted_records(what: str) -> Iterator[None]:
    """Convert exceptions that the body raises on inconsistent records to a RecordError about *what*.

    It names the line of distbench that failed on them, for the mistake may be there.

    Raises:
        RecordError: in place of the exception of the body.
    """
    try:
        yield
    except _MISFIT_ERRORS as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)][-1]
        place = f"{Path(own.filename).relative_to(_PACKAGE.parent)}:{own.lineno}"
        why = f"{type(error).__name__}: {error!s:.200}"
        raise RecordError(f"{what} are inconsistent: {why} (in {place}); {_ADVICE}") from error
