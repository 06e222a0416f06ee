"""Construct the user's models and open the user's datasets before a run, to report errors early."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.errors import UnsupportedCase
from distbench.core.serialization import decode
from distbench.core.text import truncate_middle
from distbench.data.base import DataSource
from distbench.system.files import write_atomic
from distbench.worker.first_row import FirstRow, length_range
from distbench.worker.user_code import message_with_line
from distbench.workloads import batch_norm, weights
from distbench.workloads.base import Workload

_MAX_PROBLEM_LENGTH = 2_000
_ROWS = 2
_TRIED_LENGTHS = (128, 64, 32, 16)
_MAX_ELEMENTS_IN_MEMORY = 20_000_000
"""Maximum elements of a model that is constructed in memory, where position tables can refuse a length."""


def construct_models(file: Path) -> None:
    """Construct each of the workloads in *file*, open the datasets of its cases, and write the results.

    The inputs of models have the shape of the first row of the dataset that *file* names, if it names one.
    """
    asked = json.loads(file.read_text())
    row, lengths, row_problem = _rows(asked["dataset"], has_lengths=asked["lengths"])
    answers = {
        "models": [
            _try_model(decode(PluginChoice, each, str(file)), asked["device"], asked["computes"], row)
            for each in asked["models"]
        ],
        "datasets": [_dataset_problem(decode(Case, each, str(file))) for each in asked["datasets"]],
        "row": {
            "problem": row_problem,
            "shape": row.shape,
            "shift_labels": row.needs_shift,
            "lengths": lengths,
        },
    }
    write_atomic(file.with_suffix(".constructed"), json.dumps(answers))


def _rows(dataset: str, *, has_lengths: bool) -> tuple[FirstRow, list[int], str]:
    """First row of *dataset*, lengths of all rows of tokens if asked for, and the problem of reading them.

    All are empty if *dataset* is.
    """
    try:
        row = FirstRow.read(dataset) if dataset else FirstRow()
        has_tokens = row.shape.get("kind") == "tokens"
        return row, length_range(dataset) if has_lengths and has_tokens else [], ""
    except Exception as error:
        # user code: any exception is an answer; its line is looked for in the module of a model
        return FirstRow(), [], _problem_text(error, PluginChoice("user", {"model": dataset}))


def _try_model(
    choice: PluginChoice, device: str, compute_dtypes: Sequence[str], row: FirstRow
) -> dict[str, Any]:
    """Problem of the model of *choice*, shape of its inputs, and the *compute_dtypes* that it refuses."""
    try:
        workload: Workload = registry.create_plugin("workloads", choice)
        module = _construct_module(workload)
        workload.layers(module)
        seen = _in_memory(module, workload)
    except Exception as error:
        # user code: any exception is an answer
        return {"problem": _problem_text(error, choice), "shape": {}, "refused": {}}
    refused = {compute: why for compute in compute_dtypes if (why := _refusal(module, device, compute))}
    return {"problem": "", "shape": _input_shape(seen, row), "refused": refused}


def _dataset_problem(case: Case) -> str:
    """Problem of the dataset of *case*; empty: its first row can be read."""
    try:
        source: DataSource = registry.create_plugin("data", case.data)
        shape = registry.create_plugin("workloads", case.workload).shape
        source.open(shape, case.seed, case.batch.global_batch_size)(0, range(1))
    except Exception as error:
        # user code: any exception is an answer
        return _problem_text(error, case.workload, case.data)
    return ""


def _problem_text(error: Exception, workload: PluginChoice, data: PluginChoice | None = None) -> str:
    traceback.print_exception(error)
    message = message_with_line(error, workload, data)
    return truncate_middle(message, _MAX_PROBLEM_LENGTH, "the full text is in the log of distbench run")


def _refusal(module: nn.Module, device: str, compute: str) -> str:
    """Reason why *module* can't be trained in *compute* on *device*; empty: none is known."""
    try:
        weights.check_dtypes(module)
        if device == "cpu":
            batch_norm.check_computable(module, compute)
    except UnsupportedCase as refused:
        return str(refused)
    return ""


def _construct_module(workload: Workload) -> nn.Module:
    """Construct the module, without its memory if the constructor allows that."""
    try:
        return weights.without_numbers(workload)
    except Exception:
        # a constructor that reads its numbers; a mistake is raised again
        return workload.module()


def _in_memory(module: nn.Module, workload: Workload) -> nn.Module:
    """*module* with its memory if that is small: on the meta device no table index is out of range."""
    parameters = list(module.parameters())
    if not any(p.is_meta for p in parameters) or sum(p.numel() for p in parameters) > _MAX_ELEMENTS_IN_MEMORY:
        return module
    return workload.module()


def _input_shape(module: nn.Module, row: FirstRow) -> dict[str, Any]:
    """Options of the workload ``user`` with which a forward pass gave logits; empty: with none it did.

    Tries the inputs of *row* alone if it has some that a workload takes.
    """
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    if row.inputs is not None and row.shape:
        has_ids = row.shape["kind"] == "tokens"
        dtype, labelled = (torch.long, row.inputs.shape) if has_ids else (torch.float32, ())
        logits = _output(module, row.inputs.expand(_ROWS, *row.inputs.shape).to(device, dtype))
        fits = logits is not None and logits.shape[:-1] == (_ROWS, *labelled)
        return {**row.shape, "classes": logits.shape[-1]} if logits is not None and fits else {}
    for length in _TRIED_LENGTHS:
        logits = _output(module, torch.zeros(_ROWS, length, dtype=torch.long, device=device))
        if logits is not None and logits.ndim == 3 and logits.shape[:2] == (_ROWS, length):
            return {"kind": "tokens", "length": length, "classes": logits.shape[2]}
    first = next((part for part in module.modules() if isinstance(part, nn.Linear)), None)
    if first is None:
        return {}
    logits = _output(module, torch.zeros(_ROWS, first.in_features, device=device))
    if logits is not None and logits.ndim == 2 and len(logits) == _ROWS:
        return {"kind": "features", "length": first.in_features, "classes": logits.shape[1]}
    return {}


@torch.no_grad()
def _output(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor | None:
    """Output of *module* for *inputs*; None: it does not take them, or returns no tensor."""
    try:
        output = module(inputs)
    except Exception:
        # user code: it does not take such inputs
        return None
    return output if isinstance(output, torch.Tensor) else None
