"""Builds C++ ops and initial weights once, before anything is timed.

One process does it, so that ranks never compete for the compiler, in a folder of distbench's own, so that two
environments never rebuild each other's ops.
"""

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from distbench import registry
from distbench.case import Case, Choice
from distbench.decode import decoded
from distbench.files import write_whole


def prepare(file: Path) -> None:
    """Build what *file* lists; write the failures by item, and notes for the user, to a file next to it.

    The file holds ``metrics`` (choices), ``cases`` (one for each strategy choice) and
    ``weights``: ``{file: case}``.
    """
    request = json.loads(file.read_text())
    work = _Work()
    for data in request["metrics"]:
        choice = decoded(Choice, data, str(file))
        work.do(f"metric {choice.name}", registry.make("metrics", choice).prepare)
    for data in request["cases"]:
        case = decoded(Case, data, str(file))
        work.do(f"strategy {case.label}", partial(registry.make("strategies", case.strategy).prepare, case))
    for path, data in request["weights"].items():
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
            # a failed build is a result for the cases that need it; the others continue
            traceback.print_exc()
            self.failed[item] = f"{type(error).__name__}: {error}"


def _save_weights(path: str, data: dict[str, Any]) -> None:
    from distbench.workloads import weights

    case = decoded(Case, data, path)
    workload = registry.make("workloads", case.workload)
    weights.save(workload, case.seed, Path(path), through=case.precision.compute)
