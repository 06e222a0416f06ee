"""Build C++ ops and initial weights before any trial.

One process does it, so that ranks never compete for the compiler, in distbench's own folder, so that two
environments never rebuild each other's ops.
"""

import traceback
from pathlib import Path

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.errors import UnsupportedCase
from distbench.core.serialization import decode
from distbench.core.text import compiler_error_line, truncate_middle
from distbench.engines.base import engine_of
from distbench.ipc.build_files import BuildEvent, BuildItem, append_event, read_items
from distbench.metrics.base import NotAvailable
from distbench.system.build_cache import NativeLibraryError
from distbench.system.cache import cache_folder
from distbench.worker.user_code import user_line

# maximum characters of a reason, which may be the whole output of a compiler
_MAX_REASON_LENGTH = 4_000
_DISK_FULL_TEXT = "No space left on device"


def build_items(file: Path) -> None:
    """Build the items in *file* one after another, and report each in the journal next to it."""
    for item in read_items(file):
        append_event(file, BuildEvent(item.name))
        append_event(file, _build_and_report(item))


def _build_and_report(item: BuildItem) -> BuildEvent:
    try:
        return BuildEvent(item.name, ended=True, notes=_build(item))
    except Exception as error:
        # a failed build is a result for the cases that need it; the others continue
        traceback.print_exc()
        why = truncate_middle(
            _failure_text(error, item), _MAX_REASON_LENGTH, "the full text is in the log of the preparation"
        )
        return BuildEvent(item.name, ended=True, failed=why, refused=isinstance(error, UnsupportedCase))


def _failure_text(error: Exception, item: BuildItem) -> str:
    workload = decode(Case, item.data, item.name).workload if item.kind == "weights" else None
    # a refusal concerns the model as a whole
    line = user_line(error, workload) if workload and not isinstance(error, UnsupportedCase) else ""
    return f"{_error_text(error)} ({line})" if line else _error_text(error)


def _error_text(error: Exception) -> str:
    """One line about *error*: of a compiler's output, the line with the error."""
    cache = cache_folder()
    if isinstance(error, OSError) and error.filename and _is_around(Path(str(error.filename)), cache):
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


def _is_around(file: Path, cache: Path) -> bool:
    """True if *file* is in *cache*, or a folder that should hold it."""
    return file.is_relative_to(cache) or cache.is_relative_to(file)


def _build(item: BuildItem) -> list[str]:
    """Build *item*; return notes for the user."""
    if item.kind == "metric":
        choice = decode(PluginChoice, item.data, item.name)
        # a metric written for an earlier version returns nothing
        return registry.create_plugin("metrics", choice).prepare() or []
    case = decode(Case, item.data, item.name)
    if item.kind == "strategy":
        return list(registry.create_plugin("strategies", case.strategy).prepare(case))
    if item.kind == "engine":
        return engine_of(case).prepare(case)
    from distbench.workloads import weights

    workload = registry.create_plugin("workloads", case.workload)
    through, exact = case.precision.compute, case.initial_weights == "exact"
    weights.save_initial(workload, case.seed, Path(item.file), through, exact=exact)
    return []
