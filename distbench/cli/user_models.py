"""Construct user models and open user datasets in a subprocess, and plan around models that refuse."""

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
    ConstructionResults,
    cases_with_user_data,
    construct_user_models,
    user_models,
)
from distbench.suite import Suite


def construct_models(
    models: Sequence[PluginChoice],
    device: str = "",
    computes: Sequence[str] = (),
    datasets: Sequence[Case] = (),
    dataset: str = "",
    *,
    lengths: bool = False,
    quiet: bool = False,
) -> ConstructionResults:
    """Construct each of *models* for *device*, and open the *datasets* of cases.

    Without any results, with a note, if that is not possible. The first row of *dataset*, if one is named,
    decides the shape of the inputs of *models*; all of them are read if their *lengths* are asked for.
    """
    named = [each.options.get("model", each.name) for each in models]
    named += [case.data.options.get("dataset", case.data.name) for case in datasets]
    names = ", ".join(dict.fromkeys(map(str, [*named, *([dataset] if dataset else [])])))
    began, item = time.monotonic(), f"importing {names}"
    with observe_progress(quiet=quiet) as watcher:
        watcher.build_started(item, 0, 1)
        try:
            found = construct_user_models(models, device, computes, datasets, dataset, lengths=lengths)
        except ConstructionError as error:
            watcher.note(f"{names}: not imported: {error}")
            return ConstructionResults([], [])
        problems = [*(each.problem for each in found.models), *found.dataset_problems, found.row.problem]
        watcher.build_ended(item, 0, 1, time.monotonic() - began, failed=any(problems))
        return found


def mark_refused_cases(suite: Suite, planned: Plan, machine: Machine, *, quiet: bool) -> Plan:
    """Construct user models and open user datasets once; mark the cases of *planned* that models refuse.

    This imports torch in a subprocess.

    Raises:
        SuiteError: one can't be imported, constructed or read.
    """
    cases = [item.case for item in planned.cases]
    models, datasets = user_models(cases), cases_with_user_data(cases)
    if not models and not datasets:
        return planned
    computes = list(dict.fromkeys(case.precision.compute for case in cases))
    results = construct_models(models, machine.device, computes, datasets, quiet=quiet)
    found = list(zip(models, results.models, strict=False))
    wrong = [
        suite.source_map.mistake(("workload", model.name), each.problem)
        for model, each in found
        if each.problem
    ]
    wrong += [
        suite.source_map.mistake(("data", case.data.name), problem)
        for case, problem in zip(datasets, results.dataset_problems, strict=False)
        if problem
    ]
    if wrong:
        raise SuiteError(wrong)

    def refusal(case: Case) -> str | None:
        reasons = (
            each.refused.get(case.precision.compute) for model, each in found if model == case.workload
        )
        return next(reasons, None)

    return with_refusals(suite, planned, machine, refusal)
