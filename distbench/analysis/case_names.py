"""Case names reduced to what distinguishes them."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core.case import Case
from distbench.core.text import one_line


def short_names(cases: Sequence[Case]) -> dict[str, str]:
    """Label and the parts of the name that differ among *cases*, by case id."""
    common = set(shared_parts(cases))
    return {
        case.id: "/".join([one_line(case.label), *(part for part in name_parts(case) if part not in common)])
        for case in cases
    }


def shared_parts(cases: Sequence[Case]) -> list[str]:
    """Parts after the label, such as ``ws2`` or ``fp32``, that every name has."""
    others = [set(name_parts(case)) for case in cases[1:]]
    return [part for part in name_parts(cases[0]) if all(part in other for other in others)] if cases else []


def name_parts(case: Case) -> list[str]:
    """Parts of the name of *case* after the label."""
    rest = case.name.removeprefix(case.label).lstrip("/")
    return [text for part in rest.split("/") if (text := one_line(part))]
