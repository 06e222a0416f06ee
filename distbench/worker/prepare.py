"""Builds C++ ops and initial weights once, before anything is timed.

One process does it, so that ranks never compete for the compiler, in a folder of distbench's own, so that two
environments never rebuild each other's ops.
"""

import traceback
from pathlib import Path

from distbench.core import registry
from distbench.core.case import Case, Choice
from distbench.core.errors import Refused
from distbench.core.serialization import decoded
from distbench.core.text import clipped
from distbench.ipc.build_files import Event, Item, note_event, read_items
from distbench.worker.build_errors import reason
from distbench.worker.user_code import user_line

# characters of a reason, which may be the whole output of a compiler
_LONGEST = 4_000


def prepare(file: Path) -> None:
    """Build the items in *file* one after another, and report each in the journal next to it."""
    for item in read_items(file):
        note_event(file, Event(item.name))
        note_event(file, _built(item))


def _built(item: Item) -> Event:
    try:
        return Event(item.name, ended=True, notes=_build(item))
    except Exception as error:
        # a failed build is a result for the cases that need it; the others continue
        traceback.print_exc()
        why = clipped(_why(error, item), _LONGEST, "the whole is in the log of the preparation")
        return Event(item.name, ended=True, failed=why, refused=isinstance(error, Refused))


def _why(error: Exception, item: Item) -> str:
    workload = decoded(Case, item.data, item.name).workload if item.kind == "weights" else None
    # what is refused is the model as a whole
    line = user_line(error, workload) if workload and not isinstance(error, Refused) else ""
    return f"{reason(error)} ({line})" if line else reason(error)


def _build(item: Item) -> list[str]:
    """Build *item*; return what the user should know."""
    if item.kind == "metric":
        choice = decoded(Choice, item.data, item.name)
        # one written for an earlier version returns nothing
        return registry.make("metrics", choice).prepare() or []
    case = decoded(Case, item.data, item.name)
    if item.kind == "strategy":
        return list(registry.make("strategies", case.strategy).prepare(case))
    from distbench.workloads import weights

    workload = registry.make("workloads", case.workload)
    through, exact = case.precision.compute, case.initial_weights == "exact"
    weights.save(workload, case.seed, Path(item.file), through, exact=exact)
    return []
