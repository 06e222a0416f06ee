"""The tables of ``distbench query``: the one place where they and their columns are documented."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from distbench.core import registry
from distbench.core.columns import TableSpec
from distbench.core.job import job_kinds
from distbench.report.view import views


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: str
    """Type of SQL."""
    doc: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """One table. It stands, with these columns at least, whether or not any run has a row for it."""

    name: str
    doc: str
    columns: tuple[Column, ...]


_RUN_ID = Column("run_id", "varchar", "Id of the run: eight hex digits.")
CASE = (
    _RUN_ID,
    Column(
        "case_id", "varchar", "Id of the case: a hash of all that decides the work, the same in every run."
    ),
    Column("case_name", "varchar", "Name of the case, as in reports."),
    Column("strategy", "varchar", "Short name of the strategy with its options, such as zero3+offload."),
    Column("world_size", "bigint", "Devices."),
)
"""Columns that say of which case a row is."""
TRIAL = (*CASE, Column("round", "bigint", "Which trial of the case, from 0 on."))
"""Columns that say of which trial a row is."""
_RANK = Column("rank", "bigint", "Rank, from 0 on.")

RUNS = Table(
    "runs",
    "One row per run.",
    (
        _RUN_ID,
        Column("suite", "varchar", "Name of the suite."),
        Column("created", "timestamp", "When it was started, UTC."),
        Column("state", "varchar", "running, finished or interrupted."),
        Column("version", "varchar", "Version of distbench."),
        Column("cases", "bigint", "Cases of its suite."),
        Column("trials", "bigint", "Trials with a record."),
        Column("measured", "bigint", "Trials that were measured."),
        Column("damaged", "bigint", "Trials of any kind that can't be read and are in no other table."),
        Column("cpu", "varchar", "Processor."),
        Column("cpu_cores", "bigint", "Cores available to this run."),
        Column("memory_bytes", "bigint", "Memory of the machine.", "B"),
        Column("gpus", "bigint", "GPUs of the machine."),
        Column("gpu", "varchar", "Model of its first GPU."),
        Column("machine", "json", "All facts of the machine: versions, drivers, variables."),
        Column("folder", "varchar", "Its folder."),
    ),
)
CASES = Table(
    "cases",
    "One row per case of a run, measured or not.",
    (
        *CASE,
        Column("status", "varchar", "measured, pending, damaged, unmeasured, or how a trial ended."),
        Column("reason", "varchar", "Why it was not measured, or not in every trial; else empty."),
        Column("trials", "bigint", "Trials that were measured."),
        Column("failed", "bigint", "Trials that were not."),
        Column("strategy_name", "varchar", "The strategy's plug-in."),
        Column("strategy_options", "json", "All options of the strategy."),
        Column("workload", "varchar", "The workload's plug-in."),
        Column("workload_options", "json", "All options of the workload."),
        Column("data", "varchar", "The data source's plug-in."),
        Column("device", "varchar", "cpu or cuda."),
        Column("global_batch_size", "bigint", "Samples of an optimizer step, over all ranks.", "samples"),
        Column("micro_batch_size", "bigint", "Samples of one forward pass of a rank.", "samples"),
        Column("gradient_accumulation_steps", "bigint", "Micro-batches of a rank in an optimizer step."),
        Column("precision", "varchar", "Dtype of the forward and backward pass."),
        Column("reduce_dtype", "varchar", "Dtype in which gradients are reduced."),
        Column("master_dtype", "varchar", "Dtype of the weights that the optimizer updates."),
        Column("optimizer_state_dtype", "varchar", "Dtype of the optimizer's moments."),
        Column("optimizer", "varchar", "Optimizer."),
        Column("lr", "double", "Learning rate."),
        Column("optimizer_options", "json", "All hyper-parameters of the optimizer."),
        Column("activation_checkpointing", "varchar", "none, selective or full."),
        Column("compile", "varchar", "none, or the mode of torch.compile."),
        Column("threads", "bigint", "Intra-op threads of a rank."),
        Column("seed", "bigint", "Seed of weights and data."),
        Column("initial_weights", "varchar", "drawn or exact."),
        Column("environment", "varchar", "current, or the suite's name of another Python environment."),
    ),
)
_END = (
    Column("status", "varchar", "measured, or how it ended."),
    Column("reason", "varchar", "Why it was not measured; else empty."),
)
_TIME = (
    Column("started", "timestamp", "When it was launched, UTC."),
    Column("wall_s", "double", "From the launch to the end of the last process.", "s"),
    Column("launches", "bigint", "1, or more if it was tried again after it had failed."),
)
_READ_BACK = (
    Column("absent", "json", "Why numbers are missing, by column."),
    Column("effective", "json", "Settings read back from the live engine of rank 0."),
    Column("environment", "json", "Facts of the worker: versions, device, threads."),
)
TRIAL_FACTS = (
    *TRIAL,
    *_END,
    Column("degraded", "varchar", "Why it is not compared (a noisy machine); else empty."),
    *_TIME,
    Column("nodes", "bigint", "Nodes that its ranks were on; null: where the command was, or nowhere."),
    Column("failed_rank", "bigint", "The rank that failed first."),
    Column("failed_phase", "varchar", "What that rank was doing."),
    *_READ_BACK,
)
"""Columns of ``trials`` that are not values of metrics."""
TRIALS = Table(
    "trials",
    "One row per trial (one launch of all ranks), the unit of statistics, with every number it gave.",
    (
        *TRIAL_FACTS,
        Column("step_s", "double", "Mean step time of the slowest rank.", "s"),
        Column("tokens_per_s", "double", "Throughput of all ranks.", "tokens/s"),
        Column("memory_peak", "double", "Most bytes of tensors on any rank.", "B"),
        Column("comm_bytes", "double", "Payload of a rank's collectives in a step.", "B"),
        Column("final_loss", "double", "Loss of the last timed step."),
    ),
)
STEPS = Table(
    "steps",
    "One row per rank and step of the time pass, with every number taken in each such step. A step "
    "lasts as long as its slowest rank: max(step_s) over ranks.",
    (
        *TRIAL,
        _RANK,
        Column("step", "bigint", "Step of the timed window, from 0 on; warm-up steps are not in it."),
        Column("step_s", "double", "Wall time of the step on this rank.", "s"),
        Column("loss", "double", "Training loss on this rank's share of the batch, before the update."),
    ),
)
SAMPLES = Table(
    "samples",
    "Every raw sample of every column and pass, one row each.",
    (
        *TRIAL,
        Column("name", "varchar", "Column of the record, such as step_s."),
        _RANK,
        Column("step", "bigint", "Step of the pass in which it was taken; 0 where there is one a trial."),
        Column("value", "double", "The sample; null where it is not known."),
        Column(
            "pass", "varchar", "warmup, time, count, profile or check; null where the record doesn't say."
        ),
        Column("unit", "varchar", "Its unit; empty for a pure number."),
    ),
)


SEAT = (
    _RANK,
    Column("node", "varchar", "Node that it ran on; null: where the command did."),
    Column("device", "varchar", "cpu or cuda; null if it ended before it told."),
    Column("gpu", "bigint", "Number of its GPU on the node, as nvidia-smi counts."),
    Column("gpu_uuid", "varchar", "The GPU's own id, as nvidia-smi -L shows it."),
)
RANKS = Table(
    "ranks",
    "One row per rank and trial: where it ran, and how long it worked.",
    (
        *TRIAL,
        *SEAT,
        Column("step_s", "double", "Mean of its timed steps, waiting for others included.", "s"),
        Column("work_s", "double", "Mean of its own work in the profiled steps.", "s"),
        Column("is_slowest", "boolean", "Whether no rank of the trial has more work; null if none is known."),
    ),
)


def of_metric(spec: TableSpec) -> Table:
    """Table that a metric leaves."""
    columns = (Column(column.name, column.type, column.doc, column.unit) for column in spec.columns)
    return Table(spec.name, spec.doc, (*TRIAL, *((_RANK,) if spec.by_rank else ()), *columns))


JOBS = Table(
    "jobs",
    "One row per trial that was not made to be timed (checks, checkpoints, trainings), with its numbers. Its "
    "tables are called as in its record.",
    (
        *TRIAL,
        Column("kind", "varchar", "Kind of job."),
        *_END,
        *_TIME,
        Column("options", "json", "What its ranks were asked to do."),
        *_READ_BACK,
    ),
)
VIEW = "view_"
"""What the names of the tables of views begin with; the rest is the word of ``show --view``."""


def of_views() -> Iterator[Table]:
    """Tables of the views, with the columns of their sheets."""
    for name, view in views().items():
        columns = (Column(field.name, field.type, field.doc, field.unit) for field in view.fields)
        yield Table(f"{VIEW}{name}", f"The view {name}: {view.title}.", (_RUN_ID, *columns))


_OF_METRICS = [of_metric(spec) for metric in registry.built_in("metrics").values() for spec in metric.tables]
TABLES = {table.name: table for table in (RUNS, CASES, TRIALS, RANKS, STEPS, SAMPLES, JOBS, *_OF_METRICS)}
"""The documented tables by name. Metrics of plug-ins leave others, which their records describe."""
OF_JOBS = {spec.name: of_metric(spec) for kind in job_kinds() for spec in kind.tables}
"""Tables of kinds of job, which older records do not describe."""
