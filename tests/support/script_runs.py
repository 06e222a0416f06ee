"""Stored runs of measured scripts, without a process."""

import dataclasses
from pathlib import Path
from typing import Any

from distbench.core.case import Batch, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.record import Status
from distbench.record.run_folder import SCRIPT_KEY, Run, RunInfo
from support.records import case, measured

GPT = {
    "class": "GPT2LMHeadModel",
    "config": {"model_type": "gpt2", "vocab_size": 96, "n_layer": 2, "attn_pdrop": 0.1},
}
# steps that still become faster
VALUES = {"samples_per_s": 10.0, "tokens_per_s": 640.0, "drift": -0.5, "drift_p": 1e-6}


def script_run(
    folder: Path, model: dict[str, Any] | None = GPT, *, status: Status = Status.MEASURED, **changes: Any
) -> Path:
    """A run of a script on two ranks: ZeRO-2 in bf16, two micro-batches a step."""
    info = RunInfo(
        run_id="0badcafe",
        suite_name="train",
        version="1",
        created="2026-01-01T00:00:00+00:00",
        state="finished",
        command=["distbench", "measure"],
        suite={"name": "train", SCRIPT_KEY: {"command": ["python", "train.py"]}},
        machine={},
    )
    run = Run.create(folder, info, "# measured\n")
    of_script = case(
        "script",
        strategy=PluginChoice("zero", {"stage": 2}),
        batch=Batch(16, 4, 2),
        optimizer=OptimizerConfig(lr=3e-4, weight_decay=0.1, clip_grad_norm=1.0, kernel="foreach"),
        precision=PrecisionConfig(compute="bf16"),
        activation_checkpointing="full",
    )
    record = dataclasses.replace(
        measured(dataclasses.replace(of_script, **changes)),
        status=status,
        values=VALUES,
        effective={"model": model or {}, "parameters": 10, "trained_parameters": 10},
        tables={"script_ranks": [{"rank": 0, "command": "train.py --lr 3e-4"}]},
    )
    run.write_record(record)
    return run.folder
