"""Refusals for models that do not declare how to split them. Imports no torch."""

from __future__ import annotations

import dataclasses

from distbench.core import registry
from distbench.core.case import Case

_OWN_PACKAGE = "distbench."


def undeclared_problem(
    case: Case, technique: str, parts: str, methods: str, alternative: str, option: str = ""
) -> str:
    """Reason why *technique* can't train the model of *case*, which does not declare its *parts*.

    Args:
        methods: Methods by which a workload declares them.
        alternative: A workload that declares them.
        option: Option of a suite that declares them, used in place of *methods*.
    """
    name, model = case.workload.name, case.workload.options.get("model")
    cls = registry.load_plugin("workloads", name)
    if option in {field.name for field in dataclasses.fields(cls)}:
        return (
            f"{technique}: workload.{name} has no {option}, which declares {parts}; add it "
            f'(docs/strategies.md, "Plans of models"), or use {alternative}'
        )
    which = f"workload.{name}.model = {model!r}" if model else f"the workload {name}"
    unread = ", and distbench does not import the model to find out" if model else ""
    if cls.__module__.startswith(_OWN_PACKAGE):
        write = f"write a plug-in, a subclass of {cls.__module__}.{cls.__name__} with {methods}"
    else:
        write = f"add {methods} to {cls.__name__}"
    return (
        f"{technique}: {which} does not declare {parts}{unread}; {write} (docs/plugins.md, "
        f'"A model that can be split"), or use {alternative}'
    )
