"""Results handed to pytest-benchmark, if it runs: it saves and compares them as it does its own."""

from __future__ import annotations

import pytest

from distbench.analysis.text import one_line
from distbench.pytest_plugin.running import Made


def hand_over(config: pytest.Config, made: Made) -> str:
    """Give a case to pytest-benchmark, if it runs; return why it is not given, else nothing.

    A case that was to be compared and can't be fails: what is missing must not pass.
    """
    session = config.pluginmanager.get_plugin("pytest-benchmark")
    if session is None or session.disabled or session.skip:
        return ""
    from distbench.report.benchmarks import benchmark_of, refused

    if why := refused(made.row):
        told = f"{one_line(made.row.case.name)}: not given to pytest-benchmark: {why}"
        if session.compare_fail:
            pytest.fail(f"{told}; --benchmark-compare-fail has nothing to compare", pytrace=False)
        return told
    session.benchmarks.append(benchmark_of(made.suite, made.run_id, made.steps, made.row))
    return ""
