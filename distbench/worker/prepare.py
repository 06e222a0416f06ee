"""What is built once, before anything is timed: C++ ops and the initial weights.

One process, so that ranks never race for the same compiler; a folder of our own, so that two
environments never rebuild each other's ops.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distbench import registry
from distbench.case import Case, Choice
from distbench.files import write_whole


def prepare(file: Path) -> None:
    """Do what *file* lists, and write beside it what failed, by item, and what the user should know.

    The file holds ``metrics`` (choices), ``cases`` (one for each strategy choice) and
    ``weights``: ``{file: case}``.
    """
    todo = json.loads(file.read_text())
    work = _Work()
    for data in todo["metrics"]:
        choice = Choice(**data)
        work.do(f"metric {choice.name}", registry.make("metrics", choice).prepare)
    for data in todo["cases"]:
        case = Case.from_json(data)
        work.do(f"strategy {case.label}", partial(registry.make("strategies", case.strategy).prepare, case))
    for path, data in todo["weights"].items():
        work.do(f"weights {path}", partial(_save_weights, path, data))
    write_whole(file.with_suffix(".result.json"), json.dumps({"failed": work.failed, "notes": work.notes}))


@dataclass
class _Work:
    failed: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def do(self, item: str, action: Callable[[], list[str] | None]) -> None:
        try:
            self.notes += action() or []
        except Exception as error:
            # a failed build is a result for the cases that need it; the others go on
            traceback.print_exc()
            self.failed[item] = f"{type(error).__name__}: {error}"


def _save_weights(path: str, data: dict[str, Any]) -> None:
    from distbench.workloads import _weights

    case = Case.from_json(data)
    workload = registry.make("workloads", case.workload)
    _weights.save(workload, case.seed, Path(path), through=case.precision.compute)
