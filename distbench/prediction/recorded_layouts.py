"""Models whose sizes only their own code knows, as the ranks of a probe read them."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from distbench.core.case import Case
from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.workloads.layouts import ModelLayout, WorkloadWithLayout

LAYOUT_TABLE = "model_layout"
"""Table of a probe's records with such a model; the columns are in ``distbench.jobs.probe``."""
_MAX_DEPTH = 200
"""Depth of calls up to which they are believed."""
_MAX_SIZE = 2**53
"""Largest size of a dimension that is believed."""


def layout_rows(layout: ModelLayout) -> list[dict[str, Any]]:
    """*layout* as rows of a table."""
    return [
        {"field": name, "value": json.dumps(value), "reason": ""} for name, value in asdict(layout).items()
    ]


def recorded_layout(rows: Iterable[Mapping[str, Any]]) -> ModelLayout | str | None:
    """Layout in the *rows* of a record; the reason why it is not there; or None: none was recorded."""
    listed = list(rows)
    if not listed:
        return None
    if reason := next((str(row["reason"]) for row in listed if row.get("reason")), ""):
        return reason
    try:
        fields = {str(row["field"]): json.loads(row["value"]) for row in listed}
        layout = decode(ModelLayout, fields, LAYOUT_TABLE)
    except (KeyError, TypeError, ValueError, RecursionError, RecordError):
        # records are untrusted
        return "the probe's record of the model can't be read"
    return layout if _is_possible(layout) else "the probe's record of the model is inconsistent"


def _is_possible(layout: ModelLayout) -> bool:
    """True if a model can have *layout*: its names have shapes, with sizes that are believed."""
    sizes = [size for shape in (*layout.parameters.values(), layout.between) for size in shape]
    names = {*layout.parameters, *layout.tied}
    if not sizes or not {*layout.tied.values()} <= {*layout.parameters}:
        return False
    weights = [f"{module}.weight" for module in (*layout.linear, *layout.embeddings)]
    are_matrices = all(name in names and len(layout.shape(name)) == 2 for name in weights)
    return are_matrices and all(0 <= size <= _MAX_SIZE for size in sizes) and _are_nested(layout)


def _are_nested(layout: ModelLayout) -> bool:
    """True if the calls of *layout* are inside the first one, and of modules with its parameters."""
    depths = [call.depth for call in layout.calls]
    elements = {name: math.prod(shape) for name, shape in layout.parameters.items()}
    own = [parameter for call in layout.calls for parameter in call.parameters]
    return (
        depths[:1] in ([], [0])
        and all(0 < after <= min(before + 1, _MAX_DEPTH) for before, after in itertools.pairwise(depths))
        and all(elements.get(name) == size for name, size in own)
    )


def with_model_layout(case: Case, layout: ModelLayout) -> Case:
    """*case* for theory, which then knows its model by *layout*; it has another id."""
    chosen = case.workload
    return replace(case, workload=WorkloadWithLayout(chosen.name, chosen.options, layout))
