"""Short names: what tells cases apart, without what all of them share."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.analysis.text import one_line
from distbench.case import Case


def short_names(cases: Sequence[Case]) -> dict[str, str]:
    """Return for each case id its label and those parts of its name that not all *cases* share."""
    common = set(shared_parts(cases))
    return {
        case.id: "/".join([one_line(case.label), *(part for part in parts(case) if part not in common)])
        for case in cases
    }


def shared_parts(cases: Sequence[Case]) -> list[str]:
    """Return the parts after the label, such as ``ws2`` or ``fp32``, that stand in every name."""
    others = [set(parts(case)) for case in cases[1:]]
    return [part for part in parts(cases[0]) if all(part in other for other in others)] if cases else []


def parts(case: Case) -> list[str]:
    """Return what stands behind the label in the name of *case*, in parts."""
    rest = case.name.removeprefix(case.label).lstrip("/")
    return [told for part in rest.split("/") if (told := one_line(part))]
