"""Facts that are known only at run time."""

from __future__ import annotations

from collections.abc import Iterator

from distbench.core import registry
from distbench.core.grouping import group_pairs
from distbench.core.job import job_kind
from distbench.plan import Plan, PlannedCase
from distbench.strategies.base import Strategy
from distbench.suite import Suite


def runtime_caveat(item: PlannedCase) -> str:
    """Describe what is known about *item* only at run time; empty: nothing, or it can't run."""
    strategy: Strategy = registry.create_plugin("strategies", item.case.strategy)
    return "" if item.problem else strategy.undetermined


def runtime_caveats(suite: Suite, planned: Plan) -> Iterator[str]:
    """Facts that are known only at run time.

    Of the cases, each text once with their labels, and of the kinds of jobs.
    """
    for text, labels in group_pairs(
        (runtime_caveat(item), item.case.label) for item in planned.cases
    ).items():
        if text:
            yield f"{', '.join(dict.fromkeys(labels))}: {text}"
    for word, section in suite.jobs.items():
        if of_kind := job_kind(word).follow_up_text:
            yield f"{word}: {of_kind.format_map(vars(section))}"
