"""Reads back what an export left, by each tool's own reader: ``python trackers.py TOOL FOLDER``.

Prints JSON, for each run its ``config`` (what the tool keeps of it) and its ``curves``:
``{metric: [[step, value, seconds since 1970], ...]}``. It is a process of its own, as the tools change
the one that imports them.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

# W&B's file is LevelDB's log: blocks, in which a record has a checksum, a length and a type
_MARK, _BLOCK, _HEADER = 7, 32768, 7
_WHOLE, _LAST = 1, 4


def tensorboard(folder: Path) -> dict[str, Any]:
    import yaml
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for run in sorted({file.parent.parent for file in folder.rglob("hparams.yml")}):
        events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
        (config,) = run.glob("*/hparams.yml")
        found[str(run.relative_to(folder))] = {
            "config": yaml.safe_load(config.read_text()),
            "curves": {
                tag: [(e.step, e.value, e.wall_time) for e in events.Scalars(tag)]
                for tag in events.Tags()["scalars"]
            },
        }
    return found


def mlflow(folder: Path) -> dict[str, Any]:
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true"}
    from mlflow import MlflowClient

    client = MlflowClient(folder.as_uri())
    (experiment,) = [each for each in client.search_experiments() if each.name != "Default"]
    return {
        run.info.run_name: {
            "config": run.data.params,
            "curves": {
                name: [
                    (m.step, m.value, m.timestamp / 1000)
                    for m in client.get_metric_history(run.info.run_id, name)
                ]
                for name in run.data.metrics
            },
        }
        for run in client.search_runs([experiment.experiment_id])
    }


def wandb(folder: Path) -> dict[str, Any]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: dict[str, Any] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        run: dict[str, Any] = {"config": {}, "curves": {}}
        for data in _logged(file.read_bytes()):
            record = Record.FromString(data)
            for item in (*record.run.config.update, *record.config.update):
                run["config"][item.key or ".".join(item.nested_key)] = json.loads(item.value_json)
            if record.run.display_name:
                found[record.run.display_name] = run
            row = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            for name in row.keys() - {"_step", "_timestamp", "_runtime"}:
                run["curves"].setdefault(name, []).append((row["_step"], row[name], row["_timestamp"]))
    return found


def _logged(data: bytes) -> list[bytes]:
    found, parts, at = [], b"", _MARK
    while at + _HEADER <= len(data):
        if _BLOCK - at % _BLOCK < _HEADER:
            at += _BLOCK - at % _BLOCK
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + _HEADER : at + _HEADER + length]
        at += _HEADER + length
        if kind in (_WHOLE, _LAST):
            found.append(parts)
            parts = b""
    return found


if __name__ == "__main__":
    read = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}[sys.argv[1]]
    sys.stdout.write(json.dumps(read(Path(sys.argv[2]))) + "\n")
