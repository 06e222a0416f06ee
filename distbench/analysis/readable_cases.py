"""Cases of a run whose plug-ins are part of this version of distbench."""

from __future__ import annotations

from distbench.core import registry
from distbench.core.case import Case
from distbench.core.errors import UsageError


def unreadable_reason(case: Case) -> str:
    """Reason why the plug-ins of *case* can't be created; empty: they can.

    The run may be of another version, or of a machine with other plug-ins. Those of users are not imported:
    a record may name anything.
    """
    for kind, choice in (("strategies", case.strategy), ("workloads", case.workload), ("data", case.data)):
        if choice.name not in registry.built_in_plugins(kind):
            return f"{choice.name} is not built in, and plug-ins that a record names are not imported"
        try:
            registry.create_plugin(kind, choice)
        except (UsageError, TypeError, ValueError) as error:
            return f"this version of distbench can't read the options of {choice.name}: {error}"
    return ""
