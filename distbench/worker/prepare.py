"""Builds C++ ops and initial weights once, before anything is timed.

One process does it, so that ranks never compete for the compiler, in a folder of distbench's own, so that two
environments never rebuild each other's ops.
"""

import json
import traceback
from collections.abc import Callable, Iterator
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
    failed: dict[str, str] = {}
    notes: list[str] = []
    for item, action in _items(json.loads(file.read_text()), str(file)):
        try:
            notes += action() or []
        except Exception as error:
            # a failed build is a result for the cases that need it; the others continue
            traceback.print_exc()
            failed[item] = f"{type(error).__name__}: {error}"
    write_whole(file.with_suffix(".result.json"), json.dumps({"failed": failed, "notes": notes}))


def _items(request: dict[str, Any], source: str) -> Iterator[tuple[str, Callable[[], list[str] | None]]]:
    """What *request* lists, each by its name in messages."""
    for data in request["metrics"]:
        choice = decoded(Choice, data, source)
        yield f"metric {choice.name}", registry.make("metrics", choice).prepare
    for data in request["cases"]:
        case = decoded(Case, data, source)
        yield f"strategy {case.label}", partial(registry.make("strategies", case.strategy).prepare, case)
    for path, data in request["weights"].items():
        yield f"weights {path}", partial(_save_weights, path, data)


def _save_weights(path: str, data: dict[str, Any]) -> None:
    from distbench.workloads import weights

    case = decoded(Case, data, path)
    workload = registry.make("workloads", case.workload)
    weights.save(workload, case.seed, Path(path), through=case.precision.compute)
