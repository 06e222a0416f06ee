"""Check globs against case labels and names, and suggest existing ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import get_args

from distbench.core.case import Case, Dtype, Float8Recipe, PrecisionConfig
from distbench.core.errors import SuiteError
from distbench.suite import Suite
from distbench.suite.gate import matches_case

# sizes in names and in globs on them, such as ws2, mb16*, ws[24]
_SIZE = re.compile(r"(?<![a-z])(ws|mb)[\d?!\[\]-]+")
# position of the precision among the parts of a name
_PRECISION = 3
_SHOWN = 8


def check_only_globs(suite: Suite, cases: Sequence[Case]) -> None:
    """Refuse globs of ``only`` that match no case.

    Raises:
        SuiteError: there are such globs; all of them.
    """
    wrong = [
        suite.source_map.mistake(("only", i), _no_match_message(glob, cases), glob)
        for i, glob in enumerate(suite.only)
        if not any(case.matches(glob) for case in cases)
    ]
    if wrong:
        raise SuiteError(wrong)


def check_gate_globs(suite: Suite, cases: Sequence[Case]) -> None:
    """Refuse globs of the gate that match no case: their tolerances would silently apply to none.

    They may match cases in sizes and precisions that are missing here: another machine has them.

    Raises:
        SuiteError: there are such globs; all of them.
    """
    wrong = [
        suite.source_map.mistake(("gate", "strategies", glob), _no_match_message(glob, cases), glob)
        for glob in suite.gate.strategies
        if not any(matches_case(glob, case.label, case.name) for case in cases)
        and not _matches_variant(glob, cases)
    ]
    if wrong:
        raise SuiteError(wrong)


def _matches_variant(glob: str, cases: Sequence[Case]) -> bool:
    """True if *glob* matches one of *cases* in another size or precision."""
    sizeless = _without_sizes(glob)
    return any(matches_case(sizeless, case.label, name) for case in cases for name in _name_variants(case))


def _name_variants(case: Case) -> Iterator[str]:
    """The name of *case* without its sizes, in every precision."""
    parts = _without_sizes(case.name).split("/")
    for label in _all_precision_labels():
        yield "/".join([*parts[:_PRECISION], label, *parts[_PRECISION + 1 :]])


def _without_sizes(text: str) -> str:
    return _SIZE.sub(r"\g<1>0", text)


def _all_precision_labels() -> list[str]:
    """Labels of all precisions that a case can have."""
    emulated = [
        PrecisionConfig(float8=recipe, float8_emulated=is_emulated).label
        for recipe in get_args(Float8Recipe)
        if recipe != "none"
        for is_emulated in (False, True)
    ]
    return [*get_args(Dtype), PrecisionConfig(matmul="high").label, *emulated]


def _no_match_message(glob: str, cases: Sequence[Case]) -> str:
    """Describe that *glob* matches no case, and list existing names: those of its label, if that exists."""
    head, slash, _ = glob.partition("/")
    of_label = [case.name for case in cases if slash and case.matches(head)]
    if not of_label:
        return f"matches no case; labels: {', '.join(sorted({case.label for case in cases}))}"
    names = list(dict.fromkeys(of_label))
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"matches no case; cases of {head}: {', '.join(names[:_SHOWN])}{more}"
