"""The tables of ``distbench query``: the one place where they and their columns are documented."""

from __future__ import annotations

from dataclasses import dataclass


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
    "One row a run.",
    (
        _RUN_ID,
        Column("suite", "varchar", "Name of the suite."),
        Column("created", "timestamp", "When it was begun, UTC."),
        Column("state", "varchar", "running, finished or interrupted."),
        Column("version", "varchar", "Version of distbench."),
        Column("cases", "bigint", "Cases of its suite."),
        Column("trials", "bigint", "Trials with a record."),
        Column("measured", "bigint", "Trials that were measured."),
        Column("cpu", "varchar", "Processor."),
        Column("cpu_cores", "bigint", "Cores that this run may use."),
        Column("memory_bytes", "bigint", "Memory of the machine.", "B"),
        Column("gpus", "bigint", "GPUs of the machine."),
        Column("gpu", "varchar", "Model of its first GPU."),
        Column("machine", "json", "All facts of the machine: versions, drivers, variables."),
        Column("folder", "varchar", "Where it lies."),
    ),
)
CASES = Table(
    "cases",
    "One row a case of a run, measured or not.",
    (
        *CASE,
        Column("status", "varchar", "measured, pending, unmeasured, or how its telling trial ended."),
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
        Column("activation_checkpointing", "varchar", "none or full."),
        Column("threads", "bigint", "Intra-op threads of a rank."),
        Column("seed", "bigint", "Seed of weights and data."),
    ),
)
TRIAL_FACTS = (
    *TRIAL,
    Column("status", "varchar", "measured, or how it ended."),
    Column("reason", "varchar", "Why it was not measured; else empty."),
    Column("degraded", "varchar", "Why it is kept out of comparisons (a disturbed machine); else empty."),
    Column("started", "timestamp", "When it was launched, UTC."),
    Column("wall_s", "double", "From the launch to the end of the last process.", "s"),
    Column("failed_rank", "bigint", "The rank that failed first."),
    Column("failed_phase", "varchar", "What that rank was doing."),
    Column("absent", "json", "Why numbers are missing, by column."),
    Column("effective", "json", "What the live engine of rank 0 really did."),
    Column("environment", "json", "Facts of the worker: versions, device, threads."),
)
"""Columns of ``trials`` that are no values of metrics."""
TRIALS = Table(
    "trials",
    "One row a trial (one launch of all ranks), the unit of statistics; with every number that it gave.",
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
    "One row a rank and step of the time pass, with every number that was taken in each such step. A step "
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
COLLECTIVES = Table(
    "collectives",
    "One row a collective, rank and profiled step: as asked for, as run, and how long it took.",
    (
        *TRIAL,
        _RANK,
        Column("step", "bigint", "Profiled step, from 0 on."),
        Column("place", "bigint", "Place in the step, from 0 on, in the order in which they are asked for."),
        Column("op", "varchar", "Operation as asked for by the strategy."),
        Column("ran", "varchar", "What the backend ran for it; null where the trace does not tell."),
        Column("group", "varchar", "Global ranks of its process group. A word of SQL: write it in quotes."),
        Column("group_size", "bigint", "Ranks of its process group."),
        Column("dtype", "varchar", "Dtype of what it moves."),
        Column("bytes", "bigint", "Payload by nccl-tests' convention: the full array.", "B"),
        Column("wire_bytes", "double", "What the rank sends, by the algorithm of what ran.", "B"),
        Column("seconds", "double", "Time that the rank spent in it, under the profiler.", "s"),
        Column("transfer_s", "double", "The shortest time that a rank of the group spent in it.", "s"),
        Column("wait_s", "double", "The rest: waiting for the slowest rank.", "s"),
        Column("exposed_s", "double", "Its time that no computation of the rank hid.", "s"),
    ),
)
MEMORY = Table(
    "memory",
    "Memory of a rank at the end of each phase of one step, by kind.",
    (
        *TRIAL,
        _RANK,
        Column("phase", "varchar", "build, forward, backward, step; theory: what model states should take."),
        Column("micro_batch", "bigint", "Micro-batch of the step, from 0 on."),
        Column("allocated", "bigint", "Bytes of tensors by the allocator's books.", "B"),
        Column("peak", "bigint", "Most such bytes during the phase.", "B"),
        Column("parameters", "bigint", "Parameters that the rank keeps.", "B"),
        Column("gradients", "bigint", "Gradients.", "B"),
        Column("optimizer_state", "bigint", "Moments of the optimizer.", "B"),
        Column(
            "master", "bigint", "Weights that the optimizer updates, where they are not the parameters.", "B"
        ),
        Column("states", "bigint", "The four kinds above together: model states.", "B"),
        Column("buffers", "bigint", "Buckets, and gathered copies of sharded parameters.", "B"),
        Column("activations", "bigint", "What the step has added to all other kinds.", "B"),
        Column("other", "bigint", "What no kind explained when the step began.", "B"),
        Column("host", "bigint", "Model states that lie in the host's memory (offload).", "B"),
    ),
)
TELEMETRY = Table(
    "telemetry",
    "What was seen of the machine while the ranks ran, from outside of them; a row each time.",
    (
        *TRIAL,
        Column("at", "double", 'When, in seconds since 1970. A word of SQL: write "at" in quotes.', "s"),
    ),
)

TABLES = {
    table.name: table for table in (RUNS, CASES, TRIALS, STEPS, SAMPLES, COLLECTIVES, MEMORY, TELEMETRY)
}
"""The documented tables by name. A metric may leave others, which appear beside them under their name."""
