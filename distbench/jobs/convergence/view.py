"""View ``convergence``: targets, the steps, samples and time to reach them, and verdicts."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import ClassVar

from distbench.analysis.case_names import short_names
from distbench.analysis.run import RunAnalysis
from distbench.core.grouping import group_by
from distbench.core.text import one_line
from distbench.jobs.convergence import charts as convergence_charts
from distbench.jobs.convergence.comparison import P_VALUE
from distbench.jobs.convergence.large_batch import batch_size_effects
from distbench.jobs.convergence.trainings import TrainingGroup
from distbench.jobs.convergence.verdict import AS_REFERENCE, ConvergenceEvidence
from distbench.tables.table import Field, Table, TableCell, TableRow
from distbench.views.base import CASE_FIELDS, View, case_cells
from distbench.views.charts.figures import CaseStyle, Chart

_EMPTY_NOTE = "This run has no convergence test: its suite has no section converge."
_MAX_FINDINGS = 10
_P = "{:.2g}".format
_SHARE = "{:.1%}".format


def _mean(name: str, heading: str, doc: str, unit: str = "") -> tuple[Field, Field]:
    mean = Field(name, heading, f"{doc}, mean over seeds.", unit)
    return mean, Field(f"{name}_stdev", "", f"{doc}, standard deviation over seeds.", unit)


class ConvergenceView(View):
    """Targets, the steps, samples and time to reach them, and verdicts."""

    title: ClassVar[str] = "Convergence"
    order: ClassVar[int] = 70
    table_collapsed: ClassVar[bool] = False
    in_overview: ClassVar[bool] = True
    caption: ClassVar[str] = (
        "Trainings to a target on held-out data, each case with several seeds next to its reference: "
        "one process, the same global batch, twice the seeds. Means over seeds ± standard deviation; "
        "steps and seconds (without evaluation) until the target was first reached, to within one "
        "evaluation; the value at the end. p: probability of a result as bad or worse, seed by seed, "
        f"if the case trains like its reference, adjusted for the number of tests; below {P_VALUE:g} "
        "the case is worse. ruled out: a slowdown larger than this fraction is excluded with 95% "
        "confidence."
    )
    fields: ClassVar[tuple[Field, ...]] = (
        *CASE_FIELDS,
        Field("metric", "", "Figure of merit.", type="varchar"),
        Field("target", "", "Value of the figure of merit to reach."),
        Field("better", "", "Direction of better of the figure of merit.", type="varchar"),
        Field("verdict", "verdict", "Verdict on the convergence, relative to the reference.", type="varchar"),
        Field("seeds", "seeds", "Trainings that were started.", type="bigint"),
        Field("reached", "", "Trainings that reached the target.", type="bigint"),
        *_mean("steps", "steps", "Steps to the target"),
        Field("p_steps", "p steps", "Probability of as many steps or more.", format=_P),
        Field(
            "excluded",
            "ruled out",
            "Slowdown in steps to the target that is ruled out, as a fraction.",
            format=_SHARE,
        ),
        *_mean("seconds", "seconds", "Seconds of training to the target", "s"),
        *_mean("final", "at the end", "Value at the end"),
        Field("p_final", "p end", "Probability of a value as bad or worse.", format=_P),
    )

    def table(self, run: RunAnalysis) -> Table:
        """Table with a row per reference, and below it one per case."""
        trained, names = _trained_cases(run)
        rows: list[TableRow] = []
        for same in _by_reference(trained):
            rows.append(_row(same[0], same[0].reference, convergence_charts.REFERENCE_NAME))
            rows += [_row(each, each.group, names[each.case_id], each) for each in same]
        notes = [*_notes(trained, names), *_batch_notes(trained)] if trained else [_EMPTY_NOTE]
        return self.make_table(rows, notes)

    def charts(self, run: RunAnalysis) -> list[Chart]:
        """Curves of each reference and its cases, if any case was trained to a target."""
        trained, names = _trained_cases(run)
        return convergence_charts.charts(_by_reference(trained), names, CaseStyle.for_cases(run.cases))


def _trained_cases(run: RunAnalysis) -> tuple[list[ConvergenceEvidence], dict[str, str]]:
    """Cases that were trained to a target, and their short names by id."""
    trained = run.cases_with_evidence(ConvergenceEvidence)
    return [convergence for _, convergence in trained], short_names([row.case for row, _ in trained])


def _by_reference(trained: Sequence[ConvergenceEvidence]) -> list[list[ConvergenceEvidence]]:
    """Group *trained* by reference and figure of merit."""
    return list(group_by(trained, lambda each: (each.reference.case.id, each.merit.name)).values())


def _heading(of: ConvergenceEvidence) -> str:
    case, merit = of.reference.case, of.merit
    return one_line(
        f"{case.workload.name} on {case.data.name}, global batch {case.batch.global_batch_size}: "
        f"{merit.name} {'≥' if merit.better == 'higher' else '≤'} {merit.target:g}"
    )


def _row(
    of: ConvergenceEvidence, group: TrainingGroup, name: str, tested: ConvergenceEvidence | None = None
) -> TableRow:
    every = len(group.trainings) + len(group.failures)
    reached = group.to_target("step")
    return TableRow(
        {
            **case_cells(group.case, name),
            "metric": of.merit.name,
            "target": of.merit.target,
            "better": of.merit.better,
            "verdict": tested.word if tested else None,
            "seeds": TableCell(every, f"{len(reached)}/{every}" if len(reached) < every else ""),
            "reached": len(reached),
            **_spread("steps", reached, "{:.0f}".format),
            "p_steps": tested.steps.p_worse if tested and tested.steps else None,
            "excluded": tested.steps.most if tested and tested.steps else None,
            **_spread("seconds", group.to_target("seconds"), "{:.2f}".format),
            **_spread("final", group.finals, "{:.3f}".format),
            "p_final": tested.final.p_worse if tested and tested.final else None,
        },
        group=_heading(of),
    )


def _spread(name: str, values: Sequence[float], form: Callable[[float], str]) -> dict[str, TableCell]:
    if not values:
        return {name: TableCell(None, reason="no training reached the target")}
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {name: TableCell(mean, form(mean))}
    deviation = statistics.stdev(values)
    return {name: TableCell(mean, f"{form(mean)} ±{form(deviation)}"), f"{name}_stdev": TableCell(deviation)}


def _notes(trained: Sequence[ConvergenceEvidence], names: dict[str, str]) -> list[str]:
    notes = [
        f"{names[each.case_id]}: {each.verdict.sentence}." for each in trained if each.word != AS_REFERENCE
    ]
    references = {each.reference.case.id: each.reference for each in trained}
    groups = [("reference", group) for group in references.values()]
    groups += [(names[each.case_id], each.group) for each in trained]
    findings = [
        f"{name}, seed {row['seed']}, step {row['step']}, rank {row['rank']}"
        f"{', ' + row['module'] if row['module'] else ''}: {row['kind']}: {row['text']}."
        for name, group in groups
        for row in group.findings
    ]
    notes += [one_line(text) for text in findings[:_MAX_FINDINGS]]
    if (more := len(findings) - _MAX_FINDINGS) > 0:
        notes.append(f"{more} more findings are in the records (converge_findings).")
    return [
        *notes,
        "p-values are adjusted for multiple tests (Holm): if every case trains like its reference, at "
        f"most {P_VALUE:.0%} of runs report a case as worse.",
    ]


def _batch_notes(trained: Sequence[ConvergenceEvidence]) -> list[str]:
    return [
        one_line(
            f"{each.name}: global batch {each.size} against {each.base_size}{each.learning_rate_note}: "
            f"{each.throughput:.2f}x the samples per second and {each.samples:.2f}x the samples to the "
            f"target (sample efficiency {1 / each.samples:.2f}) give {each.seconds:.2f}x the time."
        )
        for each in batch_size_effects(trained)
    ]
