"""``environments``: other Python environments by name, and the cases that choose them by ``environment``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from distbench.core.case import CURRENT_ENVIRONMENT
from distbench.core.errors import did_you_mean
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.cells import CaseFilter, SuiteAxis
from distbench.suite.work import RawMapping

SECTION_KEY, CASE_FIELD = "environments", "environment"
"""The mapping of names, and the field of a case that has one of them."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def parse_environments(given: Mapping[str, Any], file: str) -> tuple[dict[str, str], list[Problem]]:
    """Parse environments to name -> path, and return mistakes.

    Relative paths start from the folder of the suite's *file*.
    """
    wrong = [
        Problem((SECTION_KEY, name), why, path)
        for name, path in given.items()
        if (why := _problem(name, path))
    ]
    mistaken = {finding.path[1] for finding in wrong}
    here = Path(file).absolute().parent if file else Path.cwd()
    return {name: str(here / path) for name, path in given.items() if name not in mistaken}, wrong


def _problem(name: str, path: object) -> str | None:
    if name == CURRENT_ENVIRONMENT:
        return f"{CURRENT_ENVIRONMENT} is the name of distbench's own environment; choose another name"
    if not _NAME.fullmatch(name):
        return (
            "use letters, digits, dots, dashes and underscores, because the name becomes part of case names"
        )
    if not isinstance(path, str) or not path.strip():
        return "expected the path of a virtual environment or of its python, relative to the suite file"
    return None


def unknown_environments(
    known: Mapping[str, Any], work: RawMapping, axes: Sequence[SuiteAxis], parts: Sequence[CaseFilter]
) -> list[Problem]:
    """Problems of ``environment`` values that name no environment, each at its place."""
    names = [CURRENT_ENVIRONMENT, *known]
    return [
        Problem(place, f"unknown; {_advice(str(value), names)}", value)
        for place, value in _environment_values(work, axes, parts)
        if isinstance(value, str) and value not in names
    ]


def _advice(value: str, names: Sequence[str]) -> str:
    if len(names) > 1:
        return did_you_mean(value, names)
    missing = f"environments: {{{value}: path of a virtual environment}}"
    return f"the suite defines no environment other than {CURRENT_ENVIRONMENT}; use that, or add {missing}"


def _environment_values(
    work: RawMapping, axes: Sequence[SuiteAxis], parts: Sequence[CaseFilter]
) -> Iterator[tuple[KeyPath, Any]]:
    if CASE_FIELD in work:
        yield (CASE_FIELD,), work[CASE_FIELD]
    for axis in (*axes, *(axis for part in parts for axis in part.axes)):
        if axis.path == (CASE_FIELD,):
            yield from zip(axis.origins, axis.values, strict=True)
