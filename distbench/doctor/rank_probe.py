"""Sends a rank to every device or node, and hears what it finds."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from distbench.core import registry
from distbench.core.errors import UsageError
from distbench.core.machine import Machine
from distbench.ipc.diagnosis_files import Order, Report
from distbench.launchers.base import Exit, Handle, Launch, Launcher, LaunchError
from distbench.plan import machine_of
from distbench.record.run_folder import new_run_id, storing
from distbench.run.control import StopRequest
from distbench.suite import Suite
from distbench.system.machine import cache_folder
from distbench.system.processes import ending

_PATIENCE_S = 20.0
"""For the group to form, and for each message."""
_WHOLE_S, _ROUND_S = 60.0, 1.0
"""For all of it, and more for each round of exchanges, which takes half of that or less (worker/links.py)."""
_POLL_S = 0.25
_CPU_RANKS = 2


@dataclass(frozen=True)
class Visit:
    """What came back."""

    machine: Machine
    ranks: int
    """That were sent."""
    reports: list[Report]
    """Of those that came so far, in their order."""
    missing: dict[int, str] = field(default_factory=dict)
    """Rank -> how it ended that did not finish."""
    failure: str = ""
    """Why none could be started, or why those that were have been lost."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Rank -> the name of its node, by its launcher; empty: all are on this machine."""

    @property
    def hosts(self) -> list[Report]:
        """The reports of the first rank of each node."""
        return [report for report in self.reports if report.condition]

    def name(self, report: Report) -> str:
        """Name of the node of *report*."""
        own = self.nodes.get(report.placement.rank)
        return own or (report.condition.name if report.condition else f"node {report.placement.node}")

    def member(self, number: int) -> Report | None:
        """The report of the member *number* of those that met; None: it has not come."""
        met = (each for each in self.reports if each.meeting and each.meeting.member == number)
        return next(met, None)


def visit(suite: Suite, out: Path) -> Visit:
    """Visit what the launcher of *suite* starts ranks on.

    Args:
        out: Folder of runs; what ranks write is in it meanwhile.

    Raises:
        SuiteError: the launcher can start none.
        UsageError: it has no device of the kind that the suite asks for.
        InfrastructureError: *out* is not writable.
        KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left.
    """
    machine = machine_of(suite)
    launcher: Launcher = registry.make("launchers", suite.launcher)
    ranks = (
        machine.devices if machine.device == "cuda" or machine.nodes > 1 else min(_CPU_RANKS, machine.devices)
    )
    if not ranks:
        raise UsageError(
            f"device = {suite.device!r}: launcher {suite.launcher.name} has none; use cpu, or auto"
        )
    with storing(out), tempfile.TemporaryDirectory(prefix=".doctor-", dir=_made(out)) as name:
        folder = Path(name)
        with StopRequest().listening() as stop, closing(launcher.open(new_run_id())) as site:
            launch = _launch(launcher, machine, ranks, folder, out, stop)
            try:
                handle = site.launch(launch)
            except LaunchError as error:
                if stop.asked:
                    raise KeyboardInterrupt from error
                return Visit(machine, ranks, [], failure=str(error))
            try:
                limit_s = _WHOLE_S + _ROUND_S * (machine.nodes + ranks // machine.nodes)
                missing, failure = _followed(handle, ranks, limit_s, stop)
            finally:
                handle.stop()
        if stop.asked:
            raise KeyboardInterrupt
        reports = [report for rank in range(ranks) if (report := Report.read(folder, rank))]
        nodes = {rank: node for node, own in handle.nodes.items() for rank in own}
        return Visit(machine, ranks, reports, missing, failure, nodes)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _launch(
    launcher: Launcher, machine: Machine, ranks: int, folder: Path, out: Path, stop: StopRequest
) -> Launch:
    order = Order(
        device=machine.device,
        folders=[str(out.absolute()), str(cache_folder())],
        ops=str(cache_folder() / "ops"),
        patience_s=_PATIENCE_S,
    )
    file = folder / "examination.json"
    order.write(file)
    return Launch(
        entry="examine",
        file=file,
        processes=ranks,
        device=machine.device,
        nodes=launcher.nodes(ranks, machine.device),
        environment={
            **launcher.environment(),
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        },
        imports=("torch", "torch.distributed", "distbench.worker.examine"),
        given_up=lambda: stop.asked,
    )


def _followed(handle: Handle, ranks: int, limit_s: float, stop: StopRequest) -> tuple[dict[int, str], str]:
    """How those ranks ended that did not finish in *limit_s*, and why they were lost, if they were."""
    exits: dict[int, Exit] = {}
    end = time.monotonic() + limit_s
    try:
        while len(exits) < ranks and time.monotonic() < end and not stop.asked:
            exits |= {each.rank: each for each in handle.wait(_POLL_S)}
    except LaunchError as error:
        return {}, str(error)
    left = {rank: f"had not finished after {limit_s:g} s" for rank in range(ranks) if rank not in exits}
    return left | {rank: ending(each.code) for rank, each in exits.items() if each.code}, ""
