"""The columns of the GPUs from the rows that ``Gpus`` left."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from distbench.metrics._brackets import Window, increase, inside, known
from distbench.metrics._sampling import Row
from distbench.metrics.base import Absent

# NVML renews its energy counter some ten to fifty times a second
_SHORTEST_ENERGY_S = 1.0


def gpu_numbers(rows: Sequence[Row], window: Window, tokens: float | None) -> dict[str, float | Absent]:
    """Return the columns of the GPUs; *tokens* is what all ranks consumed in *window*, None if unknown.

    Raises:
        Absent: NVML told nothing of any GPU.
    """
    devices = _devices(rows)
    found: dict[str, Callable[[], float]] = {
        "gpu_utilisation": lambda: statistics.fmean(_means(devices, "utilisation", window)),
        "gpu_power": lambda: math.fsum(_means(devices, "power_w", window)),
        "energy_per_token": lambda: _energy(devices, window, tokens),
        "gpu_sm_clock": lambda: min(_means(devices, "sm_clock_hz", window)),
        "gpu_temperature": lambda: max(_most(devices, "temperature_c", window)),
        "gpu_memory_used": lambda: max(_most(devices, "memory_bytes", window)),
        "gpu_memory_own": lambda: max(_most(devices, "own_memory_bytes", window)),
        "gpu_other_processes": lambda: max(_most(devices, "others", window)),
        "gpu_throttle": lambda: max(_means(devices, "slowdown", window)),
        "gpu_power_cap": lambda: max(_means(devices, "power_cap", window)),
    }
    return {name: _or_absent(number) for name, number in found.items()}


def _or_absent(number: Callable[[], float]) -> float | Absent:
    try:
        return float(number())
    except Absent as reason:
        return reason


def _devices(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each GPU, those that tell why a reading is missing among them."""
    count = 1 + max((row["device"] for row in rows if row.get("device") is not None), default=-1)
    if not count:
        raise Absent(
            next((row["reason"] for row in rows if row.get("absent") == "gpu"), "no sample has a GPU")
        )
    return [[row for row in rows if row.get("device") == i] for i in range(count)]


def _means(devices: Sequence[Sequence[Row]], name: str, window: Window) -> list[float]:
    return [statistics.fmean(row[name] for row in _inside(rows, name, window)) for rows in devices]


def _most(devices: Sequence[Sequence[Row]], name: str, window: Window) -> list[float]:
    return [max(row[name] for row in _inside(rows, name, window)) for rows in devices]


def _inside(rows: Sequence[Row], name: str, window: Window) -> list[Row]:
    return inside(known(rows, name), window)


def _energy(devices: Sequence[Sequence[Row]], window: Window, tokens: float | None) -> float:
    if not tokens:
        raise Absent("the tokens of the timed window are not known")
    if window[1] - window[0] < _SHORTEST_ENERGY_S:
        raise Absent(
            f"the timed window of {window[1] - window[0]:.2f} s is too short for NVML's energy counter: "
            f"{_SHORTEST_ENERGY_S:g} s at least"
        )
    return math.fsum(increase(rows, "energy_j", window) for rows in devices) / tokens
