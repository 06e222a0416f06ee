"""What is built once, before anything is timed: C++ ops and the initial weights.

One process, so that ranks never race for the same compiler; a folder of our own, so that two
environments never rebuild each other's ops.
"""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

from distbench import registry
from distbench.case import Case, Choice
from distbench.files import write_whole


def prepare(file: Path) -> None:
    """Do what *file* lists, and write beside it what failed: ``{item name: reason}``.

    The file holds ``metrics`` (choices), ``cases`` (one for each strategy choice) and
    ``weights``: ``{file: case}``.
    """
    todo = json.loads(file.read_text())
    failed: dict[str, str] = {}
    for data in todo["metrics"]:
        choice = Choice(**data)
        _attempt(failed, f"metric {choice.name}", registry.make("metrics", choice).prepare)
    for data in todo["cases"]:
        case = Case.from_json(data)
        strategy = registry.make("strategies", case.strategy)
        _attempt(failed, f"strategy {case.label}", lambda s=strategy, c=case: s.prepare(c))
    for path, data in todo["weights"].items():
        _attempt(failed, f"weights {path}", lambda p=path, d=data: _save_weights(p, d))
    write_whole(file.with_suffix(".result.json"), json.dumps(failed))


def _save_weights(path: str, data: dict[str, Any]) -> None:
    from distbench.workloads import _weights

    case = Case.from_json(data)
    workload = registry.make("workloads", case.workload)
    _weights.save(workload, case.seed, Path(path), through=case.precision.compute)


def _attempt(failed: dict[str, str], name: str, action: Any) -> None:
    try:
        action()
    except Exception as error:
        # a failed build is a result for the cases that need it; the others go on
        traceback.print_exc()
        failed[name] = f"{type(error).__name__}: {error}"
