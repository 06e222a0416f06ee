"""Where the efficiency of scaling goes: a decomposition that adds up."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from distbench.analysis.ranks import work
from distbench.analysis.scaling import Point
from distbench.analysis.summary import CaseSummary


@dataclass(frozen=True)
class Budget:
    """What becomes of the device time of a step; fractions of the step that add up to 1.

    With E the efficiency (``scaling.DEFINITIONS``), of each second that a device is held, E does what one
    device alone would have done in it. The rest, 1 - E, is taken apart by the shares of the step under the
    profiler (means over ranks and profiled steps), on the premise that they hold for the timed step too:

    - ``waiting``: for slower ranks, exposed. Mean of ``profile_step_s - work_s`` over the ranks, at most
      the exposed communication, over ``profile_step_s``. This is the price of imbalance.
    - ``transfer``: the rest of the exposed communication: ``profile_exposed_comm_s / profile_step_s``
      less ``waiting``.
    - ``work``: what is left, ``1 - E - transfer - waiting``: devices that compute, but for longer than the
      same work takes on one device alone: work that every rank repeats, smaller matrices, memory and
      cores that ranks share, copies of an offload. Below 0 where n devices do it in less (a larger cache,
      an optimizer whose states are sharded).
    """

    efficiency: float
    transfer: float
    waiting: float
    work: float


def budget(point: Point) -> Budget | str:
    """Return where the device time of a step at *point* goes, or why that is not known."""
    row = point.row
    step, exposed = (row.values.get(f"profile_{part}_s") for part in ("step", "exposed_comm"))
    if step is None or exposed is None or step.value <= 0:
        reasons = (row.absent.get(f"profile_{part}_s") for part in ("step", "exposed_comm"))
        return next((reason for reason in reasons if reason), "no step was profiled")
    waited = _waited(row)
    if waited is None:
        return row.absent.get("work_s", "no rank told of its own work")
    lost = exposed.value / step.value
    waiting = min(waited, lost)
    return Budget(point.efficiency, lost - waiting, waiting, 1 - point.efficiency - lost)


def _waited(row: CaseSummary) -> float | None:
    """Return the share of a profiled step in which an average rank waits for others; None: not known."""
    if row.detail is None:
        return None
    own, steps = work(row.detail), work(row.detail, "profile_step_s")
    if not own or own.keys() != steps.keys():
        return None
    whole = statistics.fmean(steps.values())
    return max(0.0, 1 - statistics.fmean(own.values()) / whole) if whole > 0 else None
