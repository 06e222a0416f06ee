"""Merge what the ranks of a script left into the record of an ordinary trial."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.serialization import decode
from distbench.ipc.script_files import COMPLETE, ScriptReport
from distbench.metrics.base import Metric, NotAvailable, PassContext
from distbench.metrics.communication import Communication
from distbench.metrics.communication.traffic import CollectiveCall, CountedCollectives
from distbench.metrics.convergence import ConvergenceMetric
from distbench.metrics.memory import Memory
from distbench.metrics.profile import Profile
from distbench.metrics.profile.exchange import run_together
from distbench.metrics.steptime import StepTime
from distbench.metrics.telemetry import Telemetry
from distbench.metrics.throughput import Throughput
from distbench.record import Failure, RankDevice, Record, Status
from distbench.run.results import SamplerResults, merge_ranks
from distbench.run.scripts.script_columns import ScriptSteps, rank_tables
from distbench.run.scripts.script_process import UnmeasuredScript
from distbench.strategies.description import StrategyDescription
from distbench.system.processes import exit_text

MIN_STEPS = 5
"""Fewest timed steps from which a script that ended early still counts as measured."""

NO_THEORY = "distbench did not build the model, so it has no theory for it"
"""Reason why theory is absent of a training that is not of a suite."""

METRICS: dict[str, Metric] = {
    "steptime": StepTime(),
    "throughput": Throughput(),
    "memory": Memory(),
    "communication": Communication(),
    "profile": Profile(),
    "convergence": ConvergenceMetric(),
    "telemetry": Telemetry(),
    "script": ScriptSteps(),
}
"""Metrics of a script's trial."""


@dataclass(frozen=True)
class ScriptTrial:
    """Facts of a trial besides its ranks' files."""

    run_id: str
    round: int
    started: str
    """UTC, ISO 8601."""
    wall_s: float
    launched_at: float
    exit_code: int
    was_interrupted: bool
    steps: int
    """Timed steps that were asked for."""
    tokens_per_step: int | None = None
    """Tokens of a step of all ranks, in place of what its inputs tell."""


def script_record(
    trial: ScriptTrial, folder: Path, ranks: Sequence[dict[str, Any] | None], sampled: SamplerResults
) -> Record:
    """Record of *trial* from the results of its *ranks* in *folder*.

    Raises:
        UnmeasuredScript: no rank has told its case, so there is no trial to record.
    """
    known = [rank for rank in ranks if rank is not None]
    reports = [ScriptReport.from_json(rank["script"], f"rank {rank['script']['rank']}") for rank in known]
    described = next((report.case for report in reports if report.case), None)
    if described is None:
        raise UnmeasuredScript(_no_steps_text(reports), trial.exit_code)
    case = decode(Case, described, "case")
    if case.world_size != len(ranks):
        case = replace(case, world_size=len(ranks), name=f"{case.label}/ws{len(ranks)}")
    record = Record(
        run_id=trial.run_id,
        case=case,
        case_id=case.id,
        round=trial.round,
        status=Status.MEASURED,
        reason="",
        started=trial.started,
        wall_s=trial.wall_s,
        devices=[RankDevice(**rank["device"]) if rank else None for rank in ranks],
        nodes=_ranks_by_host(reports),
    )
    timed = [len(rank["samples"].get("step_s", [])) if rank else 0 for rank in ranks]
    record = _with_outcome(record, trial, reports, min(timed))
    if record.status is not Status.MEASURED:
        return record
    delivered = [_cut(rank, min(timed)) for rank in known]
    _add_profile(case, folder, delivered, reports)
    for rank, report, steps in zip(delivered, reports, timed, strict=True):
        rank["tables"] |= rank_tables(report, steps)
    if all(report.has_norm_of_part for report in reports):
        _join_norms(delivered)
    _explain_absences(delivered)
    return _merge(record, trial, delivered, reports, sampled)


def _merge(
    record: Record,
    trial: ScriptTrial,
    delivered: list[dict[str, Any]],
    reports: Sequence[ScriptReport],
    sampled: SamplerResults,
) -> Record:
    metrics, absent = dict(METRICS), {}
    if any(report.samples_per_step is None for report in reports):
        reason, unknown = "the inputs of the script don't tell its samples", ["samples_per_s"]
        if trial.tokens_per_step is None:
            del metrics["throughput"]
            reason += "; --tokens-per-step N tells its tokens"
            unknown = [column.name for column in Throughput.columns]
        absent = dict.fromkeys(unknown, reason)
    merged = merge_ranks(
        record,
        trial.launched_at,
        delivered,
        metrics,
        sampled,
        _tokens_per_sample(record.case, trial, reports[0]),
        _description(record.case),
    )
    known = {name: value for name, value in merged.values.items() if name not in absent}
    return replace(merged, values=known, absent={**merged.absent, **absent})


def _tokens_per_sample(case: Case, trial: ScriptTrial, report: ScriptReport) -> float:
    """Tokens of a sample; 1 if its rows are not tokens, as for the workloads of suites."""
    if trial.tokens_per_step is not None:
        return trial.tokens_per_step / case.batch.global_batch_size
    return 1.0 if report.tokens_per_sample is None else report.tokens_per_sample


def _ranks_by_host(reports: Sequence[ScriptReport]) -> dict[str, list[int]]:
    """Host -> its ranks; empty if there is only one."""
    ranks: dict[str, list[int]] = {}
    for report in reports:
        ranks.setdefault(report.host, []).append(report.rank)
    return ranks if len(ranks) > 1 else {}


def _description(case: Case) -> StrategyDescription | None:
    if case.strategy.name not in registry.plugin_names("strategies"):
        return None
    described: StrategyDescription = registry.create_plugin("strategies", case.strategy).description()
    # as theory is not compared, neither are its known excesses
    return described


def _with_outcome(record: Record, trial: ScriptTrial, reports: Sequence[ScriptReport], timed: int) -> Record:
    """*record* with its status and reason, after *timed* steps on every rank."""
    early = [report for report in reports if report.ended != COMPLETE]
    if not early and len(reports) == record.case.world_size:
        return record
    reason = _early_text(trial, reports, record.case.world_size, timed)
    cause = next((report for report in early if report.error and not trial.was_interrupted), None)
    failed = trial.exit_code != 0 or cause is not None or trial.was_interrupted
    failure = Failure(cause.rank if cause else None, "time", log="", user_error=cause.error if cause else "")
    if timed >= MIN_STEPS:
        return replace(record, reason=reason, failure=failure if failed else None)
    status = Status.CANCELLED if trial.was_interrupted else Status.CRASHED
    return replace(record, status=status, reason=reason, failure=failure)


def _early_text(trial: ScriptTrial, reports: Sequence[ScriptReport], ranks: int, timed: int) -> str:
    done = f"{timed} of {trial.steps} timed steps" if timed < trial.steps else f"all {timed} timed steps"
    if fault := next((report for report in reports if report.fault), None):
        return f"after {done} distbench failed on rank {fault.rank}: {fault.fault}"
    if trial.was_interrupted:
        # with which scripts raise KeyboardInterrupt
        return f"stopped by a signal after {done}"
    if cause := next((report for report in reports if report.error), None):
        return f"after {done} rank {cause.rank} raised {cause.error}"
    known = {report.rank for report in reports}
    if lost := [rank for rank in range(ranks) if rank not in known]:
        return (
            f"rank {lost[0]} was never measured, as it updated no optimizer or ended before its warm-up did; "
            f"the command {exit_text(trial.exit_code)}"
        )
    ended = next(report for report in reports if report.ended != COMPLETE)
    how = ended.ended or f"the command {exit_text(trial.exit_code)}"
    return f"after {done}: {how}"


def _no_steps_text(reports: Sequence[ScriptReport]) -> str:
    fault = next((report.fault for report in reports if report.fault), "")
    if fault:
        return f"distbench failed before a step was timed: {fault}"
    if cause := next((report for report in reports if report.error), None):
        return f"rank {cause.rank} raised {cause.error} before a step was timed"
    return (
        "the script ended before its warm-up did, so no step was timed; let it run longer, or use a shorter "
        "warm-up (--warmup)"
    )


def _cut(rank: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Result of *rank* with the first *steps* timed steps: ranks that ended early differ by one."""
    per_step = {name for name, of in rank["passes"].items() if of == "time"}
    return {
        **rank,
        "absent": dict(rank["absent"]),
        "tables": {name: [*rows] for name, rows in rank["tables"].items()},
        "samples": {
            name: values[:steps] if name in per_step and len(values) > 1 else [*values]
            for name, values in rank["samples"].items()
        },
    }


def _add_profile(
    case: Case, folder: Path, delivered: list[dict[str, Any]], reports: Sequence[ScriptReport]
) -> None:
    """Analyse the stored traces of all ranks, as the ranks of a suite do by themselves."""
    from distbench.metrics.profile.timeline import analyse_profile
    from distbench.traces.chrome_file import read_file
    from distbench.traces.trace import read_trace

    files = [folder / report.trace for report in reports]
    if not all(report.trace for report in reports) or len(reports) < case.world_size:
        for rank in delivered:
            rank["absent"]["profile_step_s"] = "the script ended before its profiled steps did"
        return
    works = []
    contexts = []
    for rank, report, file in zip(delivered, reports, files, strict=True):
        context = _profile_context(case, report, folder, rank)
        calls = [[CollectiveCall(**call) for call in step] for step in report.calls]
        counted = CountedCollectives(calls, rank["tables"].get("collectives", []))
        read = read_file(file)
        works.append(analyse_profile(context, counted, read_trace(read.events, read.origin_ns)))
        contexts.append((context, counted))
    for rank, profiled, (_, counted) in zip(delivered, run_together(works), contexts, strict=True):
        if profiled.collective_rows:
            counted.rows[:] = profiled.collective_rows
        rank["tables"]["timeline"] = profiled.timeline_rows
        if rank is delivered[0]:
            rank["tables"]["flags"] = [{"reason": reason} for reason in profiled.flags]
        for name, value in profiled.values.items():
            if isinstance(value, NotAvailable) or profiled.unavailable_reason:
                rank["absent"][name] = profiled.unavailable_reason or str(value)
            else:
                rank["samples"][name] = value if isinstance(value, list) else [value]
                rank["passes"][name] = "profile"


def _profile_context(case: Case, report: ScriptReport, folder: Path, rank: Mapping[str, Any]) -> PassContext:
    unused = cast("Any", None)
    return PassContext(
        case=case,
        workload=unused,
        strategy=unused,
        engine=unused,
        # of the device only its kind counts here, which needs no torch
        device=cast("Any", SimpleNamespace(type=case.device)),
        rank=report.rank,
        world_size=case.world_size,
        nodes=report.nodes,
        pass_name="profile",
        folder=folder,
        effective=rank["effective"],
        earlier_step_times={
            "time": rank["samples"].get("step_s", []),
            "warmup": rank["samples"].get("warmup_step_s", []),
        },
    )


def _join_norms(delivered: list[dict[str, Any]]) -> None:
    """Give each rank the norm of the whole gradient, of which it has told that of its shards."""
    of_ranks = [rank["samples"].get("grad_norm") for rank in delivered]
    if not all(of_ranks):
        return
    whole = [math.hypot(*parts) for parts in zip(*of_ranks, strict=True)]
    for rank in delivered:
        rank["samples"]["grad_norm"] = whole


def _explain_absences(delivered: list[dict[str, Any]]) -> None:
    for rank in delivered:
        rank["absent"] |= dict.fromkeys(("comm_bytes_theory", "memory_states_theory"), NO_THEORY)
        rank["absent"]["first_step_s"] = "a script is observed from its first update on"
        rank["samples"].pop("first_step_s", None)


def keep_files(source: Path, target: Path) -> None:
    """Move the traces and logs of ranks from *source* to the folder *target* of their record."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(source.iterdir()):
        if file.suffix == ".gz" or file.name.endswith(".log"):
            shutil.move(str(file), target / file.name)
    shutil.rmtree(source, ignore_errors=True)


def provisional_case(device: str, ranks: int, kind: str = "script") -> Case:
    """Case of a training of that *kind* of which only its device and ranks are known.

    Samplers start before the ranks of a script tell theirs, and traces tell no more.
    """
    none = PluginChoice(kind)
    data = {"name": f"{kind}/ws{ranks}", "label": kind, "strategy": asdict(none), "workload": asdict(none)}
    return decode(
        Case,
        {
            **data,
            "data": asdict(none),
            "world_size": ranks,
            "device": device,
            "batch": {"global_batch_size": 1, "micro_batch_size": 1, "gradient_accumulation_steps": 1},
            "optimizer": {},
            "precision": {},
            "activation_checkpointing": "none",
            "threads": 1,
            "seed": 0,
        },
        "case",
    )
