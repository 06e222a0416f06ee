"""Records of probes with rates that are easy to reckon with, for tests that need no process."""

from __future__ import annotations

import dataclasses
from typing import Any

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, Case, PluginChoice
from distbench.plan import PlannedCase
from distbench.record import Record
from support.records import case, job_of, measured, run_info

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv", "broadcast")
PASS_S, UPDATE_S, ALONE_S, IN_STEP_S = 0.010, 0.002, 0.001, 0.003
"""Seconds of a sample, of an update of 1 MB, and of any collective alone and between layers."""


def rate_row(rate: str, amount: int, seconds: float, op: str = "", ranks: int = 2, **more: Any) -> dict:
    """Row of ``machine_rates``; *amount* is in samples or bytes."""
    key = "samples" if rate == "forward_backward" else "bytes"
    spread = {"relative_sd": 0.02, "repetitions": 15, "reason": ""}
    return {"rate": rate, "op": op, "group_size": ranks, key: amount, "seconds": seconds, **spread, **more}


def probe_rows(ranks: int = 2) -> list[dict]:
    """Rates of *ranks* ranks: passes and updates by their size, collectives alike at any size."""
    rows = [rate_row("forward_backward", samples, samples * PASS_S) for samples in (1, 8)]
    rows += [rate_row("update", size, size * UPDATE_S / 1e6) for size in (1_000_000, 10_000_000)]
    rows += [rate_row("matmul", 3 << 20, 0.004), rate_row("copy", 128 << 20, 0.02)]
    for op in OPERATIONS if ranks > 1 else ():
        rows += [rate_row("collective", size, ALONE_S, op, ranks) for size in (4096, 4 << 20)]
    for op in OPERATIONS[:3] if ranks > 1 else ():
        rows += [rate_row("collective_in_step", size, IN_STEP_S, op, ranks) for size in (4096, 4 << 20)]
    return rows


def slowed(rows: list[dict], factor: float, *rates: str) -> list[dict]:
    """*rows* of which those of some *rates* take *factor* times as long."""
    assert {*rates} <= {row["rate"] for row in rows}
    return [{**row, "seconds": row["seconds"] * (factor if row["rate"] in rates else 1)} for row in rows]


def probe_of(case: Case, rows: list[dict] | None = None, **changes: Any) -> Record:
    """Record of a probe for *case*, with *changes*."""
    probed = dataclasses.replace(case, name=f"probe/ws{case.world_size}", label="probe")
    record = dataclasses.replace(measured(probed), job=job_of("probe"), phases={"probe": [9.0]}, wall_s=11.0)
    tables = {"machine_rates": rows or probe_rows(case.world_size)}
    return dataclasses.replace(record, **{"tables": tables, **changes})


_TINY: dict[str, Any] = {"workload": PluginChoice("transformer", {"preset": "tiny"}), "batch": Batch(8, 4, 1)}
DDP, FSDP = case("ddp", **_TINY), case("fsdp", **_TINY)
SMALL = case("ddp-small", **{**_TINY, "batch": Batch(8, 1, 4)}, strategy=PluginChoice("ddp"))
"""Four micro-batches: by the rates of the probe as fast as ddp."""


def partly_measured(
    *speeds: float, cases: tuple[Case, ...] = (DDP, FSDP, SMALL), trials: int = 3
) -> RunAnalysis:
    """Run with a probe of *cases*, of which only ``DDP`` has trials yet, at *speeds* in tokens/s."""
    records = (probe_of(DDP), *(measured(DDP, each, round_=i) for i, each in enumerate(speeds)))
    info = dataclasses.replace(run_info(*records), cases=[PlannedCase(each) for each in cases])
    suite = {"name": "tiny", "measure": {"trials": trials}}
    return RunAnalysis(dataclasses.replace(info, suite=suite), records)


def predicted_speed(run: RunAnalysis, of: Case) -> float:
    """Tokens/s that the probe of *run* predicts of *of*."""
    speed = run.predictions[of.id].tokens_per_s
    assert speed is not None
    return speed.value
