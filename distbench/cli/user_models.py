"""Construct user models in a subprocess, and plan around those that refuse."""

from __future__ import annotations

import time
from collections.abc import Sequence

from distbench.api.progress import observe_progress
from distbench.core.case import Case, PluginChoice
from distbench.core.errors import SuiteError
from distbench.core.machine import Machine
from distbench.plan import Plan, with_refusals
from distbench.run.user_models import (
    ConstructionError,
    ConstructionResult,
    construct_user_models,
    user_models,
)
from distbench.suite import Suite


def construct_models(
    models: Sequence[PluginChoice], device: str = "", computes: Sequence[str] = (), *, quiet: bool = False
) -> list[ConstructionResult]:
    """Construct each of *models* for *device*; empty, with a note, if that is not possible."""
    names = ", ".join(dict.fromkeys(str(each.options.get("model", each.name)) for each in models))
    began, item = time.monotonic(), f"importing {names}"
    with observe_progress(quiet=quiet) as watcher:
        watcher.build_started(item, 0, 1)
        try:
            found = construct_user_models(models, device, computes)
        except ConstructionError as error:
            watcher.note(f"{names}: not imported: {error}")
            return []
        failed = any(each.problem for each in found)
        watcher.build_ended(item, 0, 1, time.monotonic() - began, failed=failed)
        return found


def mark_refused_cases(suite: Suite, planned: Plan, machine: Machine, *, quiet: bool) -> Plan:
    """Construct user models once; mark the cases of *planned* that they refuse.

    This imports torch in a subprocess.

    Raises:
        SuiteError: one can't be imported or constructed.
    """
    cases = [item.case for item in planned.cases]
    models = user_models(cases)
    if not models:
        return planned
    computes = list(dict.fromkeys(case.precision.compute for case in cases))
    found = list(zip(models, construct_models(models, machine.device, computes, quiet=quiet), strict=False))
    wrong = [
        suite.source_map.mistake(("workload", model.name), each.problem)
        for model, each in found
        if each.problem
    ]
    if wrong:
        raise SuiteError(wrong)

    def refusal(case: Case) -> str | None:
        told = (each.refused.get(case.precision.compute) for model, each in found if model == case.workload)
        return next(told, None)

    return with_refusals(suite, planned, machine, refusal)
