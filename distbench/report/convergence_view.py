"""The view ``convergence``: targets, what it took to reach them, and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from distbench.analysis.convergence import P_VALUE, Convergence, Group
from distbench.analysis.large_batch import effects
from distbench.analysis.names import short_names
from distbench.analysis.summary import CaseSummary
from distbench.analysis.text import one_line
from distbench.report.tables import Table

_CAPTION = (
    "Trainings to a target on held-out data, each case with several seeds beside its reference: one process, "
    "the same global batch, twice the seeds. Means over seeds ± standard deviation; steps and seconds (of "
    "training alone) until the target was first reached, known to one evaluation; the value at the end. "
    "p: chance of a result as bad or worse if the case trains as its reference does, one-sided; below "
    f"{P_VALUE:g} the case is worse."
)
_HEADINGS = ("case", "verdict", "seeds", "steps", "p steps", "seconds", "at the end", "p end")
_NOTHING = "This run trains to no target: its suite has no section converge."
_MOST_FINDINGS = 10


def table(cases: Sequence[CaseSummary]) -> Table:
    """Return the view of *cases*."""
    trained = [row.convergence for row in cases if row.convergence]
    names = short_names([row.case for row in cases if row.convergence])
    rows: list[tuple[str, ...]] = []
    for same in _by_reference(trained):
        rows += [(_heading(same[0]),), _reference_row(same[0])]
        rows += [_row(each, names[each.case_id]) for each in same]
    notes = [*_notes(trained, names), *_batch_notes(trained)] if trained else [_NOTHING]
    return Table("convergence", "Convergence", _CAPTION, _HEADINGS, tuple(rows), tuple(notes))


def _by_reference(trained: Sequence[Convergence]) -> list[list[Convergence]]:
    found: dict[str, list[Convergence]] = {}
    for each in trained:
        found.setdefault(f"{each.reference.case.id} {each.merit.name}", []).append(each)
    return list(found.values())


def _heading(of: Convergence) -> str:
    case, merit = of.reference.case, of.merit
    return one_line(
        f"{case.workload.name} on {case.data.name}, global batch {case.batch.global_batch_size}: "
        f"{merit.name} {'≥' if merit.better == 'higher' else '≤'} {merit.target:g}"
    )


def _reference_row(of: Convergence) -> tuple[str, ...]:
    numbers = _numbers(of.reference)
    return ("reference (single)", "–", numbers[0], numbers[1], "–", numbers[2], numbers[3], "–")


def _row(of: Convergence, name: str) -> tuple[str, ...]:
    seeds, steps, seconds, final = _numbers(of.group)
    p_steps = f"{of.steps.p_worse:.2g}" if of.steps else "–"
    p_final = f"{of.final.p_worse:.2g}" if of.final else "–"
    return name, of.word, seeds, steps, p_steps, seconds, final, p_final


def _numbers(group: Group) -> tuple[str, str, str, str]:
    """Return the cells of *group*: trainings, steps, seconds, final value."""
    every = len(group.trainings) + len(group.broken)
    reached = group.to_target("step")
    count = f"{len(reached)}/{every}" if len(reached) < every else str(every)
    return (
        count,
        _spread(reached, "{:.0f}"),
        _spread(group.to_target("seconds"), "{:.2f}"),
        _spread(group.finals, "{:.3f}"),
    )


def _spread(values: Sequence[float], form: str) -> str:
    if not values:
        return "–"
    told = form.format(statistics.fmean(values))
    return told if len(values) < 2 else f"{told} ±{form.format(statistics.stdev(values))}"


def _notes(trained: Sequence[Convergence], names: dict[str, str]) -> list[str]:
    notes = [f"{names[each.case_id]}: {each.word}: {each.why}." for each in trained if each.why]
    found = [
        f"{name}, seed {row['seed']}, step {row['step']}, rank {row['rank']}"
        f"{', ' + row['module'] if row['module'] else ''}: {row['kind']}: {row['text']}."
        for name, group in _groups(trained, names)
        for row in group.findings
    ]
    notes += [one_line(text) for text in found[:_MOST_FINDINGS]]
    if len(found) > _MOST_FINDINGS:
        notes.append(f"{len(found) - _MOST_FINDINGS} more findings stand in the records (converge_findings).")
    return [*notes, _chance(len(trained))]


def _groups(trained: Sequence[Convergence], names: dict[str, str]) -> list[tuple[str, Group]]:
    references = {each.reference.case.id: each.reference for each in trained}
    mine = [(names[each.case_id], each.group) for each in trained]
    return [*[("reference", group) for group in references.values()], *mine]


def _chance(count: int) -> str:
    by_chance = 2 * P_VALUE * count
    return (
        f"Each of {count} cases is tested twice at p = {P_VALUE:g}, without a correction for their number: "
        f"with seeds of their own up to {by_chance:.1f} of them would be called worse by chance. The first "
        "seeds of a reference are those of its cases, which makes that far rarer where a strategy trains as "
        "it should."
    )


def _batch_notes(trained: Sequence[Convergence]) -> list[str]:
    return [
        one_line(
            f"{each.name}: global batch {each.size} against {each.base_size}{each.scaled}: "
            f"{each.throughput:.2f} times the samples a second and {each.samples:.2f} times the samples to "
            f"the target (an efficiency of {1 / each.samples:.2f} in samples) make {each.seconds:.2f} times "
            "the seconds at that pace."
        )
        for each in effects(trained)
    ]
