"""Names of cases, of their work and of their precision, reduced to what distinguishes them."""

from __future__ import annotations

from collections.abc import Sequence

from distbench.core import registry
from distbench.core.case import TUNABLE_FIELDS, Case, CaseField, PrecisionConfig
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.core.units import format_number


def short_names(cases: Sequence[Case]) -> dict[str, str]:
    """Label and the parts of the name that differ among *cases*, by case id."""
    common = set(shared_parts(cases))
    return {
        case.id: "/".join([one_line(case.label), *(part for part in name_parts(case) if part not in common)])
        for case in cases
    }


def is_plain(case: Case, strategy: str) -> bool:
    """True if *case* has *strategy* without options that its own label names, whatever the suite's label."""
    if case.strategy.name != strategy or case.label == strategy:
        return case.strategy.name == strategy
    known = registry.decode_built_in("strategies", case.strategy)
    return known is not None and known.label == strategy


def shared_parts(cases: Sequence[Case]) -> list[str]:
    """Parts after the label, such as ``ws2`` or ``fp32``, that every name has."""
    others = [set(name_parts(case)) for case in cases[1:]]
    return [part for part in name_parts(cases[0]) if all(part in other for other in others)] if cases else []


def name_parts(case: Case) -> list[str]:
    """Parts of the name of *case* after the label."""
    rest = case.name.removeprefix(case.label).lstrip("/")
    return [text for part in rest.split("/") if (text := one_line(part))]


def work_names(cases: Sequence[Case]) -> dict[str, str]:
    """Name of each case's work by case id, in the words that distinguish the works of *cases*."""
    # one batch per world size is weak or strong scaling; several batches are different work
    batches = {(case.world_size, case.batch.global_batch_size) for case in cases}
    fixed = len({size for size, _ in batches}) == len(batches)
    but: tuple[CaseField, ...] = (*TUNABLE_FIELDS, "world_size", "precision", *(("batch",) if fixed else ()))
    groups = group_by(cases, lambda case: case.work_key(but))
    if len(groups) <= 1:
        return {case.id: "" for case in cases}
    everywhere = set(shared_parts(cases))
    names: dict[str, str] = {}
    for number, mine in enumerate(groups.values(), 1):
        words = ", ".join(part for part in shared_parts(mine) if part not in everywhere) or f"work {number}"
        name = f"{words} ({number})" if words in names.values() else words
        names |= {case.id: name for case in mine}
    return names


def precision_name(precision: PrecisionConfig) -> str:
    """Label of *precision*, with the dtypes and the loss scale that differ from the usual ones."""
    usual = PrecisionConfig(compute=precision.compute)
    words: list[str] = [precision.label]
    for name in ("reduce", "master", "optimizer_state"):
        if getattr(precision, name) != getattr(usual, name):
            words.append(f"{name} {getattr(precision, name)}")
    if precision.loss_scale is not None:
        scale = precision.loss_scale
        words.append(f"loss scale {scale if isinstance(scale, str) else format_number(scale)}")
    return ", ".join(words)
