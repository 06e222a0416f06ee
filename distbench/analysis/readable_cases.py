"""Cases of a run whose plug-ins this version of distbench can create."""

from __future__ import annotations

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import UsageError


def unreadable_reason(case: Case) -> str:
    """Reason why the plug-ins of *case* can't be created; empty: they can.

    The run may be of another version, or of a machine with other plug-ins.
    """
    for kind, choice in (("strategies", case.strategy), ("workloads", case.workload), ("data", case.data)):
        try:
            registry.create_plugin(kind, choice)
        except (UsageError, TypeError, ValueError) as error:
            return f"this version of distbench can't read the options of {choice.name}: {error}"
    return ""
