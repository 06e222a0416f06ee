"""Describe the training of a measured script in words: there is nothing to choose among."""

from __future__ import annotations

import math
from pathlib import Path

from distbench.analysis.losses.case_losses import finite_values
from distbench.analysis.run import RunAnalysis
from distbench.core.case import NO_OPTIMIZER
from distbench.core.units import format_count, format_number, format_value
from distbench.record import Record, Status

_PARTS = ("data", "forward", "backward", "optimizer")


def script_training(run: RunAnalysis) -> tuple[str, tuple[str, ...]] | None:
    """The training of the script of *run* in one sentence, and sentences about its steps; None: no script."""
    if not run.info.is_script:
        return None
    measured = [record for record in run.records if record.status is Status.MEASURED]
    if not measured:
        return "No step of the script was measured.", ()
    record = measured[-1]
    return _headline(record), (*_parts_sentence(record), *_ending(record))


def _headline(record: Record) -> str:
    case = record.case
    command = record.tables.get("script_ranks", [{}])[0].get("command") or "The script"
    name = Path(str(command).split()[0]).name
    batch, kind = case.batch, record.effective.get("optimizer", {}).get("class", case.optimizer.name)
    step = record.values.get("step_s")
    pace = f"{format_value(step, 's')} a step" if step else "the step time is unknown"
    if speed := record.values.get("samples_per_s"):
        pace += f", {format_number(speed)} samples/s"
    # unknown samples are unknown throughput
    size = [f"{format_count(batch.global_batch_size, 'sample')} a step"] if speed else []
    if batch.gradient_accumulation_steps > 1 and speed:
        size[0] += f" in {batch.gradient_accumulation_steps} micro-batches"
    updates = f"{str(kind).rpartition('.')[2]} (lr {case.optimizer.lr:g})"
    if case.optimizer.name == NO_OPTIMIZER:
        updates = f"optimizer {NO_OPTIMIZER}"
    strategy = "without a wrapper that is known" if case.strategy.name == "script" else case.strategy.name
    with_ = strategy if strategy.startswith("without") else f"with {strategy}{_options_text(record)}"
    return (
        f"{name} trains {with_} on {format_count(case.world_size, 'rank')}: {pace}; "
        f"{', '.join([*size, case.precision.label, updates, *_choices(record)])}."
    )


def _choices(record: Record) -> list[str]:
    case, choices = record.case, []
    if case.optimizer.clip_grad_norm is not None:
        choices.append(f"gradients clipped to {case.optimizer.clip_grad_norm:g}")
    if case.compile != "none":
        choices.append("compiled")
    if layers := record.effective.get("checkpointed_layers"):
        choices.append(f"activations of {format_count(layers, 'module')} recomputed")
    return choices


def _options_text(record: Record) -> str:
    options = record.case.strategy.options
    return f" ({', '.join(f'{key}: {value}' for key, value in options.items())})" if options else ""


def _parts_sentence(record: Record) -> list[str]:
    """Shares of the timed steps, without a profiler."""
    step = _mean(record, "step_s")
    shares = {part: spent / step for part in _PARTS if step and (spent := _mean(record, f"script_{part}_s"))}
    if not shares:
        return []
    parts = [f"{part} {share:.0%}" for part, share in shares.items()]
    rest = max(0.0, 1 - sum(shares.values()))
    return [f"Of a timed step, mean over ranks: {', '.join(parts)}, all else {rest:.0%}."]


def _ending(record: Record) -> list[str]:
    return [f"It was not measured to the end: {record.reason}."] if record.reason else []


def _mean(record: Record, column: str) -> float:
    values = [value for steps in record.samples.get(column, []) for value in finite_values(steps)]
    return math.fsum(values) / len(values) if values else 0.0
