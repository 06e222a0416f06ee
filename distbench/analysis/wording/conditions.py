"""Conditions that affect the numbers of a run, as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distbench.analysis.candidates import noise_by_device_count
from distbench.analysis.case_summary import MEMORY, NOT_MEASURED, PENDING, THROUGHPUT, CaseSummary
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import (
    PackageVersions,
    offloads_to_same_memory,
    version_differences,
    versions_by_environment,
)
from distbench.analysis.statistics.block_model import outlier_rounds
from distbench.analysis.step_limits import gpu_idle_share
from distbench.core.case import CURRENT_ENVIRONMENT
from distbench.core.grouping import group_by, group_pairs
from distbench.core.text import join_limited, one_line
from distbench.core.units import format_count, format_number
from distbench.metrics.telemetry import DEFAULT_EFFECT
from distbench.record import Record, round_text
from distbench.record.record_reader import damage_summary
from distbench.system.gpu_limits import lowered_power_limits

_OVERVIEW_NUMBERS = {THROUGHPUT: "Throughput", MEMORY: "Peak memory"}
_MAX_GPU_IDLE_SHARE = 0.3
"""Largest share of a step in which a GPU may be idle before the run reports it."""


def condition_sentences(run: RunAnalysis) -> list[str]:
    """Sentences on environments, idle GPUs, noise, outliers, power limits, and missing trials."""
    if run.info.is_trace:
        # of one trial, and of steps alone
        return _damaged_trials(run)
    measured = [row for row in run.cases if row.measured]
    notes = [
        *environment_sentences(run.timed_records),
        *_idle_gpu_sentences(measured),
        *_noisy_cases(measured),
    ]
    notes += _unknown_numbers(run, measured)
    notes += [*_outlier_trials(measured), *_undetected_noise(run), *_autocorrelation_note(run)]
    if any(offloads_to_same_memory(row.case, row.representative_trial) for row in measured):
        notes.append(
            "On a CPU, offloaded data moves from memory to memory, so offloading saves no memory here."
        )
    if measured and all(row.trials < 2 for row in measured):
        more = "use --trials 3" if run.info.is_script else "set measure.trials to 3 or more"
        notes.append(f"Only one trial per case, so the spread is unknown; {more}.")
    if pending := sum(row.status == PENDING for row in run.cases):
        notes.append(f"{pending} of {len(run.cases)} cases have no record yet.")
    return [*notes, *_reduced_power_limits(run), *_retried_trials(run), *_damaged_trials(run)]


def environment_sentences(records: Sequence[Record]) -> list[str]:
    """Sentence for each environment other than the current one, with the versions that differ."""
    found = versions_by_environment(records)
    ours = found.pop(CURRENT_ENVIRONMENT, {})
    return [
        f"@{name}: another Python environment, {_version_differences_text(theirs, ours)}."
        for name, theirs in found.items()
    ]


def _version_differences_text(theirs: PackageVersions, ours: PackageVersions) -> str:
    if not ours:
        return (
            f"with {join_limited([_package_text(package, versions) for package, versions in theirs.items()])}"
        )
    words = [
        f"{_package_text(package, versions)} (current: {_versions_text(ours.get(package, ('none',)))})"
        for package, versions in version_differences(theirs, ours).items()
    ]
    words += [f"no {one_line(package)}" for package in ours if package not in theirs]
    return (
        f"with {join_limited(words)}"
        if words
        else "with the versions of the current one in all that is recorded"
    )


def _package_text(package: str, versions: tuple[str, ...]) -> str:
    return f"{one_line(package)} {_versions_text(versions)}"


def _versions_text(versions: tuple[str, ...]) -> str:
    return one_line(" or ".join(versions))


def _idle_gpu_sentences(rows: Sequence[CaseSummary]) -> list[str]:
    """Finding if any case in *rows* has GPUs idle for more than ``_MAX_GPU_IDLE_SHARE`` of a step."""
    shares = {
        row.case.name: idle
        for row in rows
        if (idle := gpu_idle_share(row)) is not None and idle > _MAX_GPU_IDLE_SHARE
    }
    if not shares:
        return []
    cases = [f"{one_line(name)} {idle:.0%}" for name, idle in shares.items()]
    return [
        f"GPUs are idle for much of each step ({join_limited(cases, limit=6)}): they wait for the "
        "host to launch kernels, so these speeds rank strategies by their number of kernels. Use a "
        "larger model or micro-batch (preset: auto of the workload transformer fills a GPU)."
    ]


def _noisy_cases(measured: Sequence[CaseSummary]) -> list[str]:
    """Cases and trials on a noisy machine, with the first reason: the reasons are usually alike."""
    sentences = []
    if wholly := [row for row in measured if row.degraded]:
        names = join_limited([one_line(row.case.name) for row in wholly])
        sentences.append(
            f"Measured on a noisy machine (*), so their speeds are not compared: {names}; for example: "
            f"{one_line(wholly[0].degraded)}."
        )
    if partly := [row for row in measured if row.degraded_trials and not row.degraded]:
        ignored = [f"{row.degraded_trials} of {row.trials} of {one_line(row.case.name)}" for row in partly]
        sentences.append(
            f"Noisy trials ignored, because other trials of these cases were clean: {join_limited(ignored)}."
        )
    return sentences


def _unknown_numbers(run: RunAnalysis, measured: Sequence[CaseSummary]) -> Iterator[str]:
    """Numbers of the overview that a metric of the suite could not give, with its reason."""
    names = run.short_names(measured)
    for column, noun in _OVERVIEW_NUMBERS.items():
        reasons = ((row.absence_reasons.get(column, NOT_MEASURED), names[row.case.id]) for row in measured)
        for reason, cases in group_pairs(reasons).items():
            if reason != NOT_MEASURED:
                yield f"{noun} is unknown for {join_limited(cases)}: {one_line(reason)}."


def _outlier_trials(measured: Sequence[CaseSummary]) -> list[str]:
    """Outliers: trials excluded from the means, as they are far from all others of their case."""
    paced = group_by(
        (row for row in measured if row.positive_trials(THROUGHPUT)), lambda row: row.case.world_size
    )
    trials = [
        f"{round_text(number)} of {one_line(row.case.name)}"
        for rows in paced.values()
        for row, rounds in zip(
            rows, outlier_rounds([row.positive_trials(THROUGHPUT) for row in rows]), strict=True
        )
        for number in rounds
    ]
    return (
        [f"Excluded as outliers among the trials of their case: {join_limited(trials, limit=6)}."]
        if trials
        else []
    )


def _undetected_noise(run: RunAnalysis) -> list[str]:
    """Large spread of trials that nothing marks as noisy, measured by the noise behind the choice."""
    chosen = {
        name: options for metric in run.info.suite.get("metrics", []) for name, options in metric.items()
    }
    effect = chosen.get("telemetry", {}).get("effect", DEFAULT_EFFECT)
    noisy = [
        f"{noise.scale:.1%} on {format_count(size, 'device')}"
        for size, noise in noise_by_device_count([row for row in run.cases if not row.degraded]).items()
        if noise.scale > effect
    ]
    if not noisy:
        return []
    return [
        f"Trials vary within their round by {join_limited(noisy)} (standard deviation), although no "
        "interference was detected. distbench can't see other virtual machines, clock changes or "
        "memory contention. Raise measure.trials."
    ]


def _autocorrelation_note(run: RunAnalysis) -> list[str]:
    """Note on successive trials that are correlated, which widens all intervals."""
    found = [
        f"{noise.autocorrelation:.2g} on {format_count(size, 'device')}"
        for size, noise in noise_by_device_count([row for row in run.cases if not row.degraded]).items()
        if noise.autocorrelation
    ]
    if not found:
        return []
    return [
        f"Consecutive trials of a case are correlated (autocorrelation {join_limited(found)}), so "
        "intervals are wider than for independent trials. Something that belongs to the case "
        "persists between its trials, such as a file cache or its placement in memory; a new run "
        "does not inherit it."
    ]


def _reduced_power_limits(run: RunAnalysis) -> Iterator[str]:
    """GPUs with a power limit below their default, as recorded by the machines."""
    environments = [record.environment for record in run.timed_records if record.case.device == "cuda"]
    found = {gpu: powers for facts in environments for gpu, powers in lowered_power_limits(facts).items()}
    for (limit, usual), gpus in group_pairs((powers, str(gpu)) for gpu, powers in found.items()).items():
        yield (
            f"GPU {join_limited(gpus)}: the power limit is {format_number(limit)} W, below the "
            f"default of {format_number(usual)} W; at full load its clocks are lower than those of "
            "other GPUs of this model."
        )


def _retried_trials(run: RunAnalysis) -> list[str]:
    """Trials that were relaunched after a failure."""
    trials = [
        f"{one_line(record.case.name)} {round_text(record.round)} "
        f"({', then '.join([*(attempt.status for attempt in record.attempts), record.status])})"
        for record in run.records
        if record.attempts
    ]
    return [f"Retried after a failure: {join_limited(trials, limit=4)}."] if trials else []


def _damaged_trials(run: RunAnalysis) -> list[str]:
    """Unreadable trials, which no number includes."""
    text = damage_summary(run.damaged)
    return [f"{one_line(text)}. See distbench check RUN."] if text else []
