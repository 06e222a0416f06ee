"""Constructs the user's own models that a suite names, to find what is wrong with them before a run."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import torch

from distbench import registry
from distbench.case import Choice
from distbench.clipping import clipped
from distbench.decode import decoded
from distbench.files import write_whole
from distbench.worker.user_code import located
from distbench.workloads.base import Workload

_LONGEST = 2_000


def construct(file: Path) -> None:
    """Construct each of the workloads in *file*, and write beside it what is wrong with each."""
    choices = [decoded(Choice, each, str(file)) for each in json.loads(file.read_text())]
    write_whole(file.with_suffix(".problems"), json.dumps([_problem(choice) for choice in choices]))


def _problem(choice: Choice) -> str:
    """What is wrong with the model of *choice*; empty: nothing."""
    try:
        workload: Workload = registry.make("workloads", choice)
        workload.layers(_module(workload))
    except Exception as error:
        # user code: whatever it raises is the answer
        traceback.print_exc()
        return clipped(located(error, choice), _LONGEST, "distbench run has the whole in its log")
    return ""


def _module(workload: Workload) -> torch.nn.Module:
    """The module, without its memory where the constructor allows that."""
    try:
        with torch.device("meta"):
            return workload.module()
    except Exception:
        # one that looks at its numbers; a mistake is raised again
        return workload.module()
