"""Key findings of a run, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from distbench.analysis import step_drift
from distbench.analysis.case_names import name_parts, shared_parts
from distbench.analysis.case_summary import MEMORY, THROUGHPUT, CaseSummary, comparable_groups
from distbench.analysis.choice import MEMORY_TOLERANCE, Candidate
from distbench.analysis.communication import UNEXPLAINED_TOLERANCE, compare_volume
from distbench.analysis.gradient_range import gradient_range_sentences
from distbench.analysis.inter_node import NodeEfficiency, node_efficiency
from distbench.analysis.length_imbalance import length_imbalance
from distbench.analysis.losses.case_losses import DIFFERENT_BY_DESIGN
from distbench.analysis.ranks import STRAGGLER_RATIO
from distbench.analysis.run import RunAnalysis
from distbench.analysis.scaling import ScalingSeries
from distbench.analysis.script_findings import script_findings
from distbench.analysis.step_limit_kinds import LENGTH_ADVICE
from distbench.analysis.step_limits import StepLimit
from distbench.analysis.wording.conditions import condition_sentences
from distbench.analysis.wording.failure_sentences import failure_sentences
from distbench.analysis.wording.verdict_sentences import verdict_sentences
from distbench.core.grouping import group_by
from distbench.core.text import join_limited
from distbench.core.units import format_count, format_ratio_interval

_MAX_SERIES = 4


def all_findings(run: RunAnalysis) -> list[str]:
    """Key findings of *run*: the fastest, the lowest memory, caveats, verdicts, failures."""
    judged = [
        f"{kind.capitalize()}: {line}." for kind in run.verdict_kinds for line in verdict_sentences(run, kind)
    ]
    return [*key_findings(run), *judged, *failure_sentences(run)]


def key_findings(run: RunAnalysis) -> list[str]:
    """The fastest case and the one with the lowest memory at each world size, and caveats."""
    groups = comparable_groups(run.cases, noisy=True)
    best = []
    for rows in (group for group in groups if len(group) > 1):
        where, names = _group_name(rows, groups), run.short_names(rows)
        quiet = [row for row in rows if row.comparable]
        best += [_fastest(run, quiet, where, names), _lowest_memory(run, rows, where, names)]
    best.append(node_efficiency_sentence(run.scaling))
    found = [*filter(None, best), *_step_limits(run), *_anomalies(run), *condition_sentences(run)]
    if not run.info.is_script:
        return found
    return [*_in_scripts(run), *map(_with_options, found)]


def _with_options(sentence: str) -> str:
    """*sentence* with the options of ``distbench measure`` in place of the keys of a suite."""
    for key, option in (("measure.warmup", "--warmup"), ("measure.steps", "--steps")):
        sentence = sentence.replace(key, option)
    return sentence


def _in_scripts(run: RunAnalysis) -> list[str]:
    """Findings in scripts, each once for all launches of a script."""
    found = [finding.text for record in run.records for finding in script_findings(record)]
    return [*dict.fromkeys(found)]


def _step_limits(run: RunAnalysis) -> Iterator[str]:
    """Limits of the steps of the cases: a sentence for each diagnosis, without those of noise."""
    known = [(row, found) for row, found in run.step_limits if isinstance(found, StepLimit)]
    names = run.short_names([row for row, _ in known])
    for word, same in group_by(known, lambda pair: pair[1].word).items():
        shares = [found.share for _, found in same if found.share is not None]
        if not shares:
            continue
        least, most = f"{min(shares):.0%}", f"{max(shares):.0%}"
        extent = least if least == most else f"{least} to {most}"
        cases = join_limited([names[row.case.id] for row, _ in same])
        yield (
            f"{word.capitalize()}: {cases}: {extent} of the step is {same[0][1].noun} "
            "(what to try: distbench show --view diagnosis)."
        )


def _group_name(rows: list[CaseSummary], groups: list[list[CaseSummary]]) -> str:
    size = rows[0].case.world_size
    where = f"on {format_count(size, 'device')}"
    others = [row for group in groups for row in group if row.case.world_size == size]
    if len(others) == len(rows):
        return where
    shared = shared_parts([row.case for row in rows])
    distinct = [part for part in shared if any(part not in name_parts(row.case) for row in others)]
    return f"{where} with {', '.join(distinct)}" if distinct else where


def _fastest(run: RunAnalysis, rows: Sequence[CaseSummary], where: str, names: Mapping[str, str]) -> str:
    by_pace = sorted(
        _candidates_with(run, rows, THROUGHPUT), key=lambda one: -one.speed.value if one.speed else 0.0
    )
    if len(by_pace) < 2:
        return ""
    best, second = by_pace[:2]
    assert best.speed and second.speed
    lead = f"Fastest {where}: {names[best.id]}, {best.speed.text()} tokens/s"
    if best.exclusion_reason.startswith(DIFFERENT_BY_DESIGN):
        lead += ", which trains differently by design"
    if once := [names[one.id] for one in (best, second) if one.speed and one.speed.trials < 2]:
        who = f"{once[0]} has" if len(once) == 1 else "both have"
        return f"{lead}; its lead over {names[second.id]} may be noise, because {who} only one valid trial."
    if tied := [names[one.id] for one in by_pace[1:] if one.speed and not one.speed.differs_from(best.speed)]:
        verb = "is" if len(tied) == 1 else "are"
        return (
            f"{lead}; {join_limited(tied, limit=3)} {verb} within trial-to-trial variation, so the "
            "difference may be noise."
        )
    ratio = best.speed.ratio(second.speed)
    return f"{lead}, {format_ratio_interval(ratio.value, ratio.low, ratio.high)[0]}x {names[second.id]}."


def _lowest_memory(
    run: RunAnalysis, rows: Sequence[CaseSummary], where: str, names: Mapping[str, str]
) -> str:
    by_memory = sorted(_candidates_with(run, rows, MEMORY), key=lambda one: one.memory or 0.0)
    if len(by_memory) < 2:
        return ""
    least, most = by_memory[0], by_memory[-1]
    alike = [names[one.id] for one in by_memory if one.needs_same_memory_as(least)]
    if len(alike) == len(by_memory):
        return f"Lowest memory {where}: all cases are within {MEMORY_TOLERANCE:.0%}; {least.memory_text}."
    others = f" (tied with {join_limited(alike[1:], limit=3)})" if len(alike) > 1 else ""
    part = (least.memory or 0.0) / (most.memory or 1.0)
    return f"Lowest memory {where}: {alike[0]}{others}, {least.memory_text}, {part:.0%} of {names[most.id]}."


def node_efficiency_sentence(scaling: Sequence[ScalingSeries]) -> str:
    """Sentence with the split efficiency of each series at its largest size.

    Empty if no series goes beyond a node of several devices.
    """
    found = []
    for series in sorted(scaling, key=lambda each: -each.points[-1].throughput.value):
        at = node_efficiency(series, series.points[-1])
        # with one device per node it would repeat the efficiency
        if isinstance(at, NodeEfficiency) and at.devices_per_node > 1:
            found.append(
                f"{series.name} {at.within_node:.2f} on one node "
                f"({format_count(at.devices_per_node, 'device')}), {at.across_nodes:.2f} across "
                f"{at.nodes} nodes"
            )
    more = f"; {len(found) - _MAX_SERIES} more are in the table" if len(found) > _MAX_SERIES else ""
    shown = "; ".join(found[:_MAX_SERIES])
    return f"Efficiency within and across nodes: {shown}{more}." if found else ""


def _candidates_with(run: RunAnalysis, rows: Sequence[CaseSummary], column: str) -> list[Candidate]:
    """Candidates of *rows* that have a number of *column*; ties are decided as in a choice."""
    known = {row.case.id for row in rows if row.positive_trials(column)}
    return [one for one in run.candidates if one.id in known]


def _anomalies(run: RunAnalysis) -> list[str]:
    """Anomalies of the measured cases of *run*."""
    measured = [row for row in run.cases if row.representative_trial is not None]
    names = run.short_names(measured)
    moved = [
        (row, found)
        for row in measured
        if row.representative_trial and (found := compare_volume(row.representative_trial))
    ]
    affected = {
        "steps were still speeding up during timing; increase measure.warmup": [
            row for row in measured if step_drift.still_speeds_up(row)
        ],
        "gradients are all-reduced instead of reduce-scattered: the same traffic as plain data parallelism, "
        "plus an all-gather": [row for row, found in moved if found.all_reduces_gradients],
        "the bytes moved differ from theory; see distbench show --view communication": [
            row for row, found in moved if found.unexplained_share > UNEXPLAINED_TOLERANCE
        ],
    }
    sentences = [
        f"{join_limited([names[row.case.id] for row in rows])}: {text}."
        for text, rows in affected.items()
        if rows
    ]
    sentences += step_drift.drift_sentences(measured, names)
    sentences += gradient_range_sentences(measured, names)
    sentences += _inter_node_bottlenecks(run, measured, names)
    sentences += [each.sentence for each in run.stragglers]
    # a finding on ranks over all trials replaces one on a single trial
    uneven = [] if run.stragglers else measured
    return sentences + [sentence for row in uneven if (sentence := _imbalance(row, names[row.case.id]))]


def _inter_node_bottlenecks(
    run: RunAnalysis, measured: Sequence[CaseSummary], names: Mapping[str, str]
) -> list[str]:
    """Cases limited by the inter-node link, the worst with its numbers."""
    sentences = []
    bottlenecks = [
        (row.case.id, run.inter_node_bottlenecks[row.case.id])
        for row in measured
        if row.case.id in run.inter_node_bottlenecks
    ]
    for same in group_by(bottlenecks, lambda pair: pair[1].cause).values():
        worst, most = max(same, key=lambda pair: pair[1].exposed_share)
        others = [names[case_id] for case_id, _ in same if case_id != worst]
        more = f"; so {'is' if len(others) == 1 else 'are'} {join_limited(others)}" if others else ""
        sentences.append(f"{names[worst]} is {most.sentence}{more}.")
    return sentences


def _imbalance(row: CaseSummary, name: str) -> str:
    imbalance = row.values.get("imbalance")
    if imbalance is None or imbalance.value < STRAGGLER_RATIO:
        return ""
    if by_length := length_imbalance(row.representative_trial):
        return (
            f"{name}: ranks are uneven because their rows differ in length: the slowest rank works "
            f"{imbalance.value:.2f}x as long as the median rank, and the tokens of ranks explain "
            f"{by_length.explained:.0%} of the variance of their work; {LENGTH_ADVICE}."
        )
    return (
        f"{name}: ranks are uneven: the slowest rank works {imbalance.value:.2f}x as long as the "
        "median rank; no rank is slowest significantly more often than the others, or there are "
        "too few trials (distbench show --view ranks)."
    )
