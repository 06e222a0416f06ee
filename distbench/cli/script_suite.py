"""Draft a suite from the measured trial of a script."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from distbench.cli.suite_draft import SuiteDraft, named_workload, transformers_task
from distbench.core import registry
from distbench.core.case import Case, ObservedOptimizer, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.errors import UsageError
from distbench.record import Record, Status
from distbench.record.run_folder import Run
from distbench.suite.sections import check_section
from distbench.workloads._hf_files import deciding_keys


def draft_from_run(
    run: Run, model: str, shape: Mapping[str, Any] | None = None, *, has_data: bool = False
) -> SuiteDraft:
    """Carry the training of the script of *run* over.

    Args:
        run: A measured script.
        model: Answer as for ``init``; empty: that of the run, which needs to be one of transformers.
        shape: Of a sample, as ``complete_shape`` takes it; None: not known.
        has_data: True if the suite gets the dataset of the script, which *shape* is that of.

    Raises:
        UsageError: the run has no measured script, or its model is not known.
    """
    record = measured_trial(run)
    case = record.case
    left = ["its first weights: the suite has random ones"]
    if not has_data:
        left[:0] = ["its data: the suite has synthetic rows of the same length"]
    if record.effective.get("trained_parameters") != record.effective.get("parameters"):
        left.append("what it freezes or adds to the model: the suite trains all parameters")
    row = (shape or {}) if has_data else {}
    tokens = row.get("length") or _tokens_per_sample(record)
    workload = _workload(record, model, shape, tokens, left)
    own = _strategy(case, left)
    batch = {"global_batch_size": case.batch.global_batch_size}
    if case.batch.gradient_accumulation_steps > 1:
        batch["micro_batch_size"] = case.batch.micro_batch_size
    sections = {
        "workload": workload,
        "batch": batch,
        "optimizer": _optimizer(record, left),
        "precision": _changed(case.precision, PrecisionConfig(), "compute"),
        "activation_checkpointing": case.activation_checkpointing,
        "compile": {"none": False, "default": True}.get(case.compile, case.compile),
        "world_sizes": [case.world_size] if case.world_size > 1 else "auto",
    }
    command = record.tables.get("script_ranks", [{}])[0].get("command") or run.info().suite_name
    return SuiteDraft(f"{command!r}, measured in {run.folder}", sections, own, tuple(left))


def measured_trial(run: Run) -> Record:
    """The last measured trial of the script of *run*.

    Raises:
        UsageError: it measured a suite, or no step of its script.
    """
    if not run.info().is_script:
        suite = run.folder / "suite.yaml"
        raise UsageError(f"--from: {run.folder} is of a suite and not of a script; copy its suite: {suite}")
    measured = [record for record in run.records() if record.status is Status.MEASURED]
    if not measured:
        raise UsageError(f"--from: {run.folder} has no measured step of a script; measure it first")
    return measured[-1]


def _workload(
    record: Record, model: str, shape: Mapping[str, Any] | None, tokens: int | None, left: list[str]
) -> dict[str, Any]:
    if model:
        return named_workload(model, shape, tokens)
    own = record.effective.get("model") or {}
    if not isinstance(own.get("config"), dict):
        raise UsageError(
            "--from: the run does not hold the script's model; add --model package.module:callable, which "
            "returns it"
        )
    name = str(own.get("class", ""))
    if (task := transformers_task(name)) is None:
        raise UsageError(
            f"--from: a suite has no task for the model {name}; add --model package.module:callable, "
            "which returns it"
        )
    config = deciding_keys(own["config"])
    options: dict[str, Any] = {"model_type": config.pop("model_type", ""), "task": task}
    # a suite sets these outside of the configuration
    for key, option in (
        ("vocab_size", "vocab_size"),
        ("image_size", "image_size"),
        ("num_channels", "channels"),
    ):
        if (size := config.pop(key, None)) is not None:
            options[option] = size
    if tokens:
        options["seq_len"] = tokens
    left.append("dropout: the suite has none")
    return {"huggingface": {**options, "config": config}}


def _tokens_per_sample(record: Record) -> int | None:
    """Tokens of a sample; None: its rows are not tokens."""
    tokens, samples = record.values.get("tokens_per_s"), record.values.get("samples_per_s")
    if not tokens or not samples or round(tokens / samples) <= 1:
        return None
    return round(tokens / samples)


def _strategy(case: Case, left: list[str]) -> PluginChoice | None:
    own = case.strategy
    plugin = registry.built_in_plugins("strategies").get(own.name)
    problem = "" if plugin is not None else "no wrapper is known, so the script communicates by itself"
    if plugin is not None:
        _, findings = check_section(plugin, own.options, ("strategy", own.name))
        problem = findings[0].message if findings else ""
    if problem:
        left.append(f"its strategy: {problem}")
        return None
    return own


def _optimizer(record: Record, left: list[str]) -> dict[str, Any]:
    own = record.case.optimizer
    if record.effective.get("optimizer", {}).get("groups", 1) > 1:
        left.append("settings of some parameters, such as no weight decay: the suite has one for all")
    left.append("its schedule of the learning rate, if it has one: the suite keeps the rate constant")
    if isinstance(own, ObservedOptimizer):
        left.append(f"its optimizer {own.name}, which no suite has: the suite takes AdamW with the same rate")
        return {"name": "adamw", "lr": own.lr}
    return {"name": own.name, "lr": own.lr, **_changed(own, OptimizerConfig(), "name")}


def _changed(value: Any, default: Any, always: str) -> dict[str, Any]:
    """Fields of *value* that differ from *default*, and the field *always*."""
    fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    return {name: set_ for name, set_ in fields.items() if name == always or set_ != getattr(default, name)}
