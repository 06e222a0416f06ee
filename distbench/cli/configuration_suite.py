"""Draft a suite from a configuration file of DeepSpeed or Accelerate."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distbench.cli.suite_draft import SuiteDraft, named_workload
from distbench.core.errors import UsageError
from distbench.suite.configurations.files import read_configuration

_SAMPLES = 8


def draft_from_file(file: Path, model: str, shape: Mapping[str, Any] | None = None) -> SuiteDraft:
    """Carry the training that *file* describes over.

    Args:
        file: Configuration of DeepSpeed (JSON) or Accelerate (YAML).
        model: Answer as for ``init``: such a file does not name the model.
        shape: ``kind``, ``length`` and ``classes`` of a user's own model; None: not known.

    Raises:
        UsageError: it is no such file, or there is no model.
    """
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
    ranks = training.world_size
    sections = {
        "workload": named_workload(model, shape),
        "batch": batch,
        "optimizer": training.optimizer or {"name": "adamw"},
        "precision": training.precision,
        "activation_checkpointing": training.activation_checkpointing,
        "compile": False,
        "world_sizes": [ranks] if ranks else "auto",
    }
    return SuiteDraft(str(file), sections, training.strategy, tuple(left))
