"""A gate's numbers as OpenMetrics, which GitLab shows as changes in a merge request."""

from __future__ import annotations

from distbench.analysis.text import one_line
from distbench.gate.verdicts import Result

_HELP = "Cost of the candidate over that of the baseline; above 1 is worse."


def text(result: Result) -> str:
    """Return a gauge ``distbench_ratio`` for each gated number of each case (openmetrics.io, 1.0)."""
    lines = ["# TYPE distbench_ratio gauge", f"# HELP distbench_ratio {_HELP}"]
    for case in result.cases:
        for one in case.findings:
            if one.ratio is not None:
                labels = {"case": case.case, "metric": one.metric, "verdict": one.word}
                told = ",".join(f'{key}="{_label(value)}"' for key, value in labels.items())
                lines.append(f"distbench_ratio{{{told}}} {one.ratio:.6g}")
    return "\n".join([*lines, "# EOF", ""])


def _label(value: str) -> str:
    return one_line(value).replace("\\", "\\\\").replace('"', '\\"')
