"""One rank of ``distbench doctor``: describe the host, join the group, measure links.

Results are written as soon as they are known: a group that never forms still has its hosts described.
On CPUs of several nodes only one rank of each takes part, as the links between nodes are tested.
"""

import os
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import psutil
import torch
import torch.distributed as dist

from distbench.core.grouping import group_by
from distbench.ipc.diagnosis_files import DiagnosisRequest, JoinResult, LinkTest, RankPlacement, RankReport
from distbench.system.host_state import inspect_host
from distbench.system.network_interfaces import INTERFACE_VARIABLES, network_interfaces
from distbench.worker import links
from distbench.worker.cuda_device import CudaUnavailableError, open_cuda_device
from distbench.worker.node import node_facts
from distbench.worker.rendezvous import connect_nccl, join_process_group

_CPU_SAMPLE_S = 0.3
_POLL_S = 0.05


def run_diagnosis(file: Path, listen_fd: int | None = None) -> NoReturn:
    """Run the rank that ``RANK`` names in the diagnosis of *file*, and end the process."""
    order, report = DiagnosisRequest.read(file), RankReport(RankPlacement.from_environment(os.environ))
    code = 0
    try:
        if report.placement.local_rank and order.device == "cuda":
            _wait_for_first_local_rank(file.parent, report.placement, order.timeout_s)
        for further in _diagnose(order, report, listen_fd):
            report = further
            report.write(file.parent)
    except BaseException as error:
        # the edge of the process: whatever a framework raises is a finding
        traceback.print_exc()
        if isinstance(error, CudaUnavailableError):
            report = replace(report, device_error=str(error))
        replace(report, error=f"{type(error).__name__}: {error}").write(file.parent)
        code = 1
    sys.stdout.flush()
    os._exit(code)


def _wait_for_first_local_rank(folder: Path, placement: RankPlacement, timeout_s: float) -> None:
    """Wait until the first rank of this host has inspected its GPUs, which no other rank uses before."""
    end = time.monotonic() + timeout_s
    while not RankReport.read(folder, placement.rank - placement.local_rank) and time.monotonic() < end:
        time.sleep(_POLL_S)


def _diagnose(order: DiagnosisRequest, report: RankReport, listen_fd: int | None) -> Iterator[RankReport]:
    """Yield the report of this rank, each time with more results."""
    place = report.placement
    interface = _socket_interface(order.device)
    address = _address(interface)
    if place.local_rank == 0:
        condition = inspect_host(map(Path, order.folders), Path(order.ops))
        busy_cores = psutil.cpu_percent(_CPU_SAMPLE_S) / 100 * (psutil.cpu_count() or 1)
        report = replace(report, facts=node_facts(address).facts, host_state=condition, busy_cores=busy_cores)
    yield report
    has_all = order.device == "cuda" or place.node_count == 1
    if not has_all and place.local_rank:
        return
    member, size = (place.rank, place.world_size) if has_all else (place.node_rank, place.node_count)
    device = _device(order, place)
    began = time.perf_counter()
    join_process_group(
        member, size, device, listen_fd, join_timeout_s=order.timeout_s, collective_timeout_s=order.timeout_s
    )
    # all ranks have to take part in NCCL's first batch, but not in those of a pair
    connect_nccl(device)
    seconds, state = time.perf_counter() - began, psutil.net_if_stats().get(interface)
    mtu = state.mtu if state else None
    meeting = JoinResult(member, seconds, interface, address, _link_speed(interface), mtu)
    report = replace(report, join=meeting, blocked_peers=_inaccessible_peers(device))
    yield report
    yield (report := replace(report, link_tests=list(_measure_pairs(member, place.node_rank, size, device))))
    yield replace(report, all_reduce=links.measure_all_reduce(device))
    # nobody may leave while another still communicates with it
    dist.barrier()


def _measure_pairs(member: int, node: int, size: int, device: torch.device) -> Iterator[LinkTest]:
    """Yield link tests between all pairs of nodes (by their first members), then inside this node."""
    counts = [torch.zeros(1, dtype=torch.int64) for _ in range(size)]
    dist.all_gather(counts, torch.tensor([node]))
    on = group_by(range(size), lambda each: int(counts[each]))
    firsts = [members[0] for members in on.values()]
    largest = max(on.values(), key=len)
    inside = list(links.round_robin_pairs(on[node]))
    # every member counts the same rounds, so that none is a round ahead
    inside += [[]] * (len(list(links.round_robin_pairs(largest))) - len(inside))
    for pairs in [*links.round_robin_pairs(firsts), *inside]:
        dist.barrier()
        for pair in pairs:
            if member in pair and (done := links.measure_pair(member, pair, device)):
                yield done


def _device(order: DiagnosisRequest, placement: RankPlacement) -> torch.device:
    if order.device == "cpu":
        return torch.device("cpu")
    return open_cuda_device(placement.local_rank)


def _inaccessible_peers(device: torch.device) -> list[int]:
    """GPUs of this host that *device* can't access directly."""
    if device.type == "cpu":
        return []
    others = [i for i in range(torch.cuda.device_count()) if i != device.index]
    return [i for i in others if not torch.cuda.can_device_access_peer(device, i)]


def _socket_interface(device: str) -> str:
    """Network interface configured for collectives on *device*; empty: none."""
    gloo, nccl = INTERFACE_VARIABLES
    names = (nccl, gloo) if device == "cuda" else (gloo,)
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _address(interface: str) -> str:
    found = [address for each in network_interfaces() if each.name == interface for address in each.addresses]
    return next(iter(found), "")


def _link_speed(interface: str) -> float | None:
    """Bits per second of the hardware of *interface*; None for a virtual one, whose number means nothing."""
    if not interface or not Path("/sys/class/net", interface, "device").exists():
        return None
    state = psutil.net_if_stats().get(interface)
    return state.speed * 1e6 if state and state.speed else None
