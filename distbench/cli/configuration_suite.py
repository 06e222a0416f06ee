"""Draft a suite from a configuration file of another framework."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distbench.cli.suite_draft import SuiteDraft, named_workload, transformers_task
from distbench.core import registry
from distbench.core.errors import UsageError
from distbench.engines.base import Framework
from distbench.suite.configurations.files import model_of_transformers, read_configuration
from distbench.suite.configurations.settings import DescribedTraining

_SAMPLES = 8


def draft_from_file(
    file: Path, model: str, shape: Mapping[str, Any] | None = None, *, has_data: bool = False
) -> SuiteDraft:
    """Carry the training that *file* describes over.

    Args:
        file: Configuration of DeepSpeed, Accelerate or the Trainer, or of a model of transformers.
        model: Answer as for ``init``: only a file of the last kind tells it.
        shape: Of a sample, as ``complete_shape`` takes it; None: not known.
        has_data: True if the suite gets a dataset of the user's own.

    Raises:
        UsageError: it is no such file, or there is no model.
    """
    if (configuration := model_of_transformers(file)) is not None:
        return _draft_of_model(file, configuration, model, (shape or {}).get("length"))
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
            f"{', '.join(training.data)}, which are for a dataset: add --data package.module:callable"
        )
    ranks = training.world_size
    sections = {
        "workload": named_workload(model, shape),
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
        data_options=training.data,
    )


def _engine_of(training: DescribedTraining) -> str:
    """Engine of the framework that *training* is configured for; empty: it has none for its strategy."""
    framework: type[Framework] = registry.load_plugin("engines", training.engine)
    is_scaled = training.precision.get("compute") == "fp16" and training.strategy.name != "zero"
    return training.engine if training.strategy.name in framework.strategies and not is_scaled else ""


def _draft_of_model(
    file: Path, configuration: Mapping[str, Any], model: str, tokens: int | None
) -> SuiteDraft:
    """Suite of the model with the *configuration* of transformers in *file*, which tells no training.

    Args:
        tokens: Tokens of a sample; None: not known.

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
    return SuiteDraft(str(file), sections, None, ("its training, which is not in the file, and dropout",))
