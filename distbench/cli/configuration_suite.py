"""Draft a suite from a configuration file of another framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distbench.cli.suite_draft import SuiteDraft, label_options, named_workload, transformers_task
from distbench.cli.suite_template import is_user_callable
from distbench.core import registry
from distbench.core.errors import UsageError
from distbench.engines.base import Framework
from distbench.run.user_models import RowResult
from distbench.suite.configurations.files import model_of_transformers, read_configuration
from distbench.suite.configurations.settings import DescribedTraining

_SAMPLES = 8
_NO_ROWS = RowResult()


def has_unequal_rows(file: Path) -> bool:
    """True if rows of a dataset may differ in length in the training that *file* describes.

    Raises:
        UsageError: it is no such file.
    """
    return model_of_transformers(file) is None and bool(
        {"padding", "packing"} & read_configuration(file).data.keys()
    )


def draft_from_file(
    file: Path,
    model: str,
    shape: Mapping[str, Any] | None = None,
    row: RowResult = _NO_ROWS,
    *,
    has_data: bool = False,
) -> SuiteDraft:
    """Carry the training that *file* describes over.

    Args:
        file: Configuration of DeepSpeed, Accelerate or the Trainer, or of a model of transformers.
        model: Answer as for ``init``: only a file of the last kind tells it.
        shape: Of a sample, as ``complete_shape`` takes it; None: not known.
        row: What rows of the user's own dataset tell.
        has_data: True if the suite gets a dataset of the user's own.

    Raises:
        UsageError: it is no such file, or there is no model.
    """
    if (configuration := model_of_transformers(file)) is not None:
        return _draft_of_model(file, configuration, model, (shape or {}).get("length"), row)
    training = read_configuration(file)
    if not model:
        raise UsageError(
            f"--from: {file} does not name the model; add --model package.module:callable, or a preset of "
            "the transformer such as tiny"
        )
    left, batch = [*map(str, training.left_out)], dict(training.batch)
    if not {"global_batch_size", "per_device_batch_size"} & {*batch}:
        batch["per_device_batch_size"] = _SAMPLES * batch.get("gradient_accumulation_steps", 1)
        left.append(f"the batch, which is not in the file: the suite has micro-batches of {_SAMPLES} samples")
    if training.data and not has_data:
        left.append(
            f"{', '.join(training.data)}: only for a dataset of your own; add --data package.module:callable"
        )
    tokens = training.length
    data_options: Mapping[str, Any] = training.data
    if has_data:
        length_option = "length" if is_user_callable(model) else "seq_len"
        tokens, data_options, notes = _fitted_to_rows(training, row, length_option)
        left += notes
    ranks = training.world_size
    sections = {
        "workload": named_workload(model, shape, tokens),
        "batch": batch,
        "optimizer": training.optimizer or {"name": "adamw"},
        "precision": training.precision,
        "activation_checkpointing": training.activation_checkpointing,
        "compile": training.compile,
        **({"loader": training.loader} if training.loader else {}),
        "world_sizes": [ranks] if ranks else "auto",
    }
    return SuiteDraft(
        str(file),
        sections,
        training.strategy,
        tuple(left),
        engine=_engine_of(training),
        data_options={**data_options, **label_options(row)},
    )


def _fitted_to_rows(
    training: DescribedTraining, row: RowResult, length_option: str
) -> tuple[int | None, Mapping[str, Any], list[str]]:
    """Tokens of a sample, options of the dataset whose rows tell *row*, and what the suite does not have.

    The number is None where the first row decides it.

    Args:
        length_option: Name of the option of the workload that holds it.
    """
    data, tokens = training.data, training.length
    if row.shape.get("kind", "tokens") != "tokens" or not {"padding", "packing"} & data.keys():
        return None, data, []
    if not row.lengths:
        return _fitted_unread(training, row, length_option)
    shortest, longest = row.lengths
    if shortest == longest and data.get("padding") and "group_by_length" not in data:
        # there is nothing to fill
        return longest, {key: value for key, value in data.items() if key != "padding"}, []
    if tokens is None and "packing" in data:
        why = f"packed rows have {longest:,} tokens, as the longest row of the dataset"
        return longest, data, [f"max_length, which is not in the file: {why} (may change the training)"]
    if tokens is not None and longest > tokens:
        why = f"rows of the dataset have up to {longest:,}, and a suite cuts none; cut them in the dataset"
        return tokens, data, [f"the cut of rows to max_length = {tokens:,} tokens: {why}"]
    return tokens or longest, data, []


def _fitted_unread(
    training: DescribedTraining, row: RowResult, length_option: str
) -> tuple[int | None, Mapping[str, Any], list[str]]:
    """As of ``_fitted_to_rows``, for a dataset whose lengths are not known."""
    data, left = training.data, []
    if row.shape and (options := [key for key in ("packing", "group_by_length") if key in data]):
        why = "the dataset is iterable, so lengths are not known in advance; it needs __len__ and __getitem__"
        left = [f"{key}: {why} (may change the training)" for key in options]
        data = {"padding": "longest", **{key: data[key] for key in data if key not in options}}
    if training.length is None:
        why = "it can't be read in advance"
        left.append(f"the length of the longest row: {why}; set {length_option} of the workload to it")
    return training.length, data, left


def _engine_of(training: DescribedTraining) -> str:
    """Engine of the framework that *training* is configured for; empty: it has none for its strategy."""
    framework: type[Framework] = registry.load_plugin("engines", training.engine)
    is_scaled = training.precision.get("compute") == "fp16" and training.strategy.name != "zero"
    return training.engine if training.strategy.name in framework.strategies and not is_scaled else ""


def _draft_of_model(
    file: Path, configuration: Mapping[str, Any], model: str, tokens: int | None, row: RowResult
) -> SuiteDraft:
    """Suite of the model with the *configuration* of transformers in *file*, which tells no training.

    Args:
        tokens: Tokens of a sample; None: not known.
        row: What rows of the user's own dataset tell.

    Raises:
        UsageError: a suite has no task for it, or another model is asked for.
    """
    if model:
        raise UsageError(f"--model = {model!r}: leave it out; --from {file} is a model itself")
    named = configuration.get("architectures")
    name = str(named[0] if isinstance(named, list) and named else named or "ForCausalLM")
    if (task := transformers_task(name)) is None:
        raise UsageError(
            f"--from: a suite has no task for the model {name} of {file}; use --model package.module:callable"
        )
    sections = {
        "workload": {
            "huggingface": {"config": str(file), "task": task, **({"seq_len": tokens} if tokens else {})}
        },
        "batch": {"per_device_batch_size": _SAMPLES},
        "optimizer": {"name": "adamw"},
        "precision": {"compute": "fp32"},
        "activation_checkpointing": "none",
        "compile": False,
        "world_sizes": "auto",
    }
    left = ("its training, which is not in the file, and dropout",)
    # masks, and rows of pairs, have labels of their own
    labels = label_options(row) if task == "causal-lm" else {}
    return SuiteDraft(str(file), sections, None, left, data_options=labels)
