"""Recognise files of other tools that are given in place of a suite."""

from __future__ import annotations

import re

_SUITE_KEY = re.compile(r"^\s*[\"']?(workload|strategies|batch)[\"']?\s*:", re.MULTILINE)
_MANIFEST = re.compile(
    r"^apiVersion:.*?^kind:\s*(\w+)|^kind:\s*(\w+).*?^apiVersion:", re.MULTILINE | re.DOTALL
)
_CARRIED = "distbench run --from FILE --model MODEL compares it with its alternatives"
# file, remedy
_BY_PATTERN = (
    (r"^#SBATCH\b", "a batch script for Slurm", "submit a suite with distbench launch SUITE --on slurm"),
    (r"\A#!.*sh\b", "a shell script", "distbench init writes a first suite"),
    (r"^(compute_environment|distributed_type):", "a configuration of Accelerate", _CARRIED),
    (r'"traceEvents"', "a trace", "distbench trace FILE explains it"),
    (
        r'"(zero_optimization|train_batch_size|train_micro_batch_size_per_gpu)"\s*:',
        "a configuration of DeepSpeed",
        _CARRIED,
    ),
    (r'"per_device_train_batch_size"\s*:', "a file of TrainingArguments", _CARRIED),
    (r"^\[(parallelism|activation_checkpoint|lr_scheduler)\]", "a configuration of torchtitan", _CARRIED),
    (
        r'"model_type"\s*:',
        "a configuration of a model of transformers",
        "distbench run --from FILE compares strategies for it",
    ),
    (
        r"^(import \w|from [\w.]+ import )",
        "a Python script",
        "distbench run --model package.module:callable compares strategies for a model in it",
    ),
)


def foreign_file_problem(text: str) -> str:
    """Name the kind of file of another tool that *text* is, with a remedy; empty: it may be a suite."""
    if _SUITE_KEY.search(text):
        return ""
    found = _manifest(text) or next(
        ((what, remedy) for pattern, what, remedy in _BY_PATTERN if re.search(pattern, text, re.MULTILINE)),
        None,
    )
    return f"this is {found[0]}, not a suite; {found[1]}" if found else ""


def _manifest(text: str) -> tuple[str, str] | None:
    if not (kind := _MANIFEST.search(text)):
        return None
    what = f"a Kubernetes manifest (kind: {kind[1] or kind[2]})"
    return what, "print those of a suite with distbench launch SUITE --on kubernetes --print"
