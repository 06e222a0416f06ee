"""Start a rank on every device or node and collect its report."""

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
from distbench.ipc.diagnosis_files import DiagnosisRequest, RankReport
from distbench.ipc.launch_spec import LaunchSpec
from distbench.ipc.messages import RankExit
from distbench.launchers.base import Launcher, LaunchError, RunningLaunch
from distbench.plan import launcher_machine
from distbench.record.run_folder import new_run_id, resumable_write_errors
from distbench.run.interruption import StopRequest
from distbench.suite import Suite
from distbench.system.cache import cache_folder
from distbench.system.processes import exit_text

_MESSAGE_TIMEOUT_S = 20.0
"""Timeout of the formation of the process group, and of each message."""
_TIMEOUT_S, _ROUND_TIMEOUT_S = 60.0, 1.0
"""Timeout of the whole probe, and addition for each round of exchanges, which takes half of that or less
(worker/links.py).
"""
_POLL_S = 0.25
_CPU_RANKS = 2


@dataclass(frozen=True)
class ProbeResult:
    """Reports of the probed ranks."""

    machine: Machine
    ranks: int
    """Number of ranks that were started."""
    reports: list[RankReport]
    """Reports received so far, in rank order."""
    missing: dict[int, str] = field(default_factory=dict)
    """Rank that did not finish -> how it ended."""
    failure: str = ""
    """Reason why no rank could be started, or why the started ones were lost."""
    nodes: Mapping[int, str] = field(default_factory=dict)
    """Rank -> the name of its node, by its launcher; empty: all are on this machine."""

    @property
    def host_reports(self) -> list[RankReport]:
        """The reports of the first rank of each node."""
        return [report for report in self.reports if report.host_state]

    def node_name(self, report: RankReport) -> str:
        """Name of the node of *report*."""
        own = self.nodes.get(report.placement.rank)
        return own or (report.host_state.name if report.host_state else f"node {report.placement.node_rank}")

    def report_of(self, number: int) -> RankReport | None:
        """The report of member *number* of the process group; None: not received."""
        met = (each for each in self.reports if each.join and each.join.member == number)
        return next(met, None)


def probe_ranks(suite: Suite, out: Path) -> ProbeResult:
    """Probe the devices or nodes of the launcher of *suite*.

    Args:
        out: Folder of runs; files of the ranks are in it meanwhile.

    Raises:
        SuiteError: the launcher can start none.
        UsageError: it has no device of the kind that the suite requests.
        InfrastructureError: *out* is not writable.
        KeyboardInterrupt: Ctrl-C or SIGTERM; no process is left.
    """
    machine = launcher_machine(suite)
    launcher: Launcher = registry.create_plugin("launchers", suite.launcher)
    ranks = (
        machine.devices if machine.device == "cuda" or machine.nodes > 1 else min(_CPU_RANKS, machine.devices)
    )
    if not ranks:
        raise UsageError(
            f"device = {suite.device!r}: launcher {suite.launcher.name} has no such device; use cpu, or auto"
        )
    with (
        resumable_write_errors(out),
        tempfile.TemporaryDirectory(prefix=".doctor-", dir=_make_folder(out)) as name,
    ):
        folder = Path(name)
        with StopRequest().handle_signals() as stop, closing(launcher.open_session(new_run_id())) as site:
            launch = _launch(launcher, machine, ranks, folder, out)
            try:
                handle = site.launch(launch, lambda: stop.stop_now)
            except LaunchError as error:
                if stop.stop_now:
                    raise KeyboardInterrupt from error
                return ProbeResult(machine, ranks, [], failure=str(error))
            try:
                limit_s = _TIMEOUT_S + _ROUND_TIMEOUT_S * (machine.nodes + ranks // machine.nodes)
                missing, failure = _wait_for_ranks(handle, ranks, limit_s, stop)
            finally:
                handle.stop()
        if stop.stop_now:
            raise KeyboardInterrupt
        reports = [report for rank in range(ranks) if (report := RankReport.read(folder, rank))]
        nodes = {rank: node for node, own in handle.ranks_by_node.items() for rank in own}
        return ProbeResult(machine, ranks, reports, missing, failure, nodes)


def _make_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _launch(launcher: Launcher, machine: Machine, ranks: int, folder: Path, out: Path) -> LaunchSpec:
    order = DiagnosisRequest(
        device=machine.device,
        folders=[str(out.absolute()), str(cache_folder())],
        ops=str(cache_folder() / "ops"),
        timeout_s=_MESSAGE_TIMEOUT_S,
    )
    file = folder / "examination.json"
    order.write(file)
    return LaunchSpec(
        command="examine",
        instructions=file,
        processes=ranks,
        device=machine.device,
        nodes=launcher.node_count(ranks, machine.device),
        environment={
            **launcher.environment(),
            "OMP_NUM_THREADS": "1",
            "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        },
        imports=("torch", "torch.distributed", "distbench.worker.examine"),
    )


def _wait_for_ranks(
    handle: RunningLaunch, ranks: int, limit_s: float, stop: StopRequest
) -> tuple[dict[int, str], str]:
    """Wait up to *limit_s*; return how unfinished or failed ranks ended, and why ranks were lost."""
    exits: dict[int, RankExit] = {}
    end = time.monotonic() + limit_s
    try:
        while len(exits) < ranks and time.monotonic() < end and not stop.stop_now:
            exits |= {each.rank: each for each in handle.wait(_POLL_S)}
    except LaunchError as error:
        return {}, str(error)
    left = {rank: f"had not finished after {limit_s:g} s" for rank in range(ranks) if rank not in exits}
    return left | {rank: exit_text(each.code) for rank, each in exits.items() if each.code}, ""
