"""Check all nodes together: presence, process group, uniformity, clocks and links."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.core.grouping import group_pairs
from distbench.core.units import format_bitrate, format_count, format_duration
from distbench.doctor.host_checks import Diagnosis
from distbench.doctor.rank_probe import ProbeResult
from distbench.ipc.diagnosis_files import LinkTest, RankReport
from distbench.launchers.nodes import NodeDifference, node_differences
from distbench.metrics.communication.traffic import bus_factor

# with a larger offset, times in the logs of two nodes are not comparable
_MAX_CLOCK_OFFSET_S = 1.0
# of the median link of its kind, or of the speed that the hardware reports
_SLOW_FRACTION = 0.5
# with fewer links, a median says nothing about the others
_MIN_LINKS = 3
_BUSY_FRACTION = 0.1
# bytes of IP and ICMP around the data, for IPv4 and IPv6
_PING_HEADERS = (28, 48)
_BUSY_CORES = 0.5


@dataclass(frozen=True)
class NetworkLink:
    """A link test, with the names of its ends."""

    first: str
    second: str
    kind: str
    """``between nodes`` or ``inside nodes``."""
    exchange: LinkTest

    @property
    def name(self) -> str:
        """Names of its ends."""
        return f"{self.first} - {self.second}"

    @property
    def bits_per_s(self) -> float:
        """Bits per second in each of the two directions, which were busy at the same time."""
        return 8 * self.exchange.bytes / self.exchange.seconds


def measured_links(visit: ProbeResult) -> list[NetworkLink]:
    """The links that were tested."""
    return [
        _make_link(visit, report, peer, each)
        for report in visit.reports
        for each in report.link_tests
        if (peer := visit.report_of(each.peer))
    ]


def check_cluster(visit: ProbeResult, allowed: Sequence[NodeDifference]) -> Iterator[Diagnosis]:
    """Findings of *visit*; nodes may differ in the *allowed* facts."""
    yield from _check_nodes(visit)
    if visit.failure:
        return
    yield from _check_group(visit)
    yield from _check_host_names(visit)
    yield from _check_uniformity(visit, allowed)
    yield from _check_load(visit)
    yield from _check_clocks(visit)
    yield from _check_links(visit)
    yield from _check_peer_access(visit)


_NO_REPORT_REMEDY = "check that python -m distbench.worker runs there, in the environment of the command"


def _check_nodes(visit: ProbeResult) -> Iterator[Diagnosis]:
    if visit.failure:
        yield Diagnosis(
            "nodes", "problem", visit.failure, remedy="see docs/clusters.md for the requirements of the nodes"
        )
        return
    names = [visit.node_name(report) for report in visit.host_reports]
    text = f"{format_count(len(names), 'node')}, {format_count(visit.ranks, 'rank')}: {', '.join(names)}"
    yield Diagnosis("nodes", "ok", text)


def _check_group(visit: ProbeResult) -> Iterator[Diagnosis]:
    members = [report for report in visit.reports if report.join]
    silent = visit.missing.keys() - {report.placement.rank for report in visit.reports}
    for rank in sorted(silent):
        where = ", ".join(filter(None, [visit.nodes.get(rank, ""), f"rank {rank}"]))
        yield Diagnosis("group", "problem", f"no report: {visit.missing[rank]}", where, _NO_REPORT_REMEDY)
    for report in visit.reports:
        if report.device_error:
            where = f"{visit.node_name(report)}, rank {report.placement.rank}"
            what, _, remedy = report.device_error.partition("; ")
            yield Diagnosis("torch", "problem", what, where, remedy)
        elif report.error or report.placement.rank in visit.missing:
            why = report.error or f"rank {report.placement.rank} {visit.missing[report.placement.rank]}"
            stage = "exchanging messages" if report.join else "meeting the others"
            yield Diagnosis(
                "group",
                "problem",
                f"{stage}: {why}",
                f"{visit.node_name(report)}, rank {report.placement.rank}",
                _group_remedy(visit, report),
            )
    if members:
        slowest = max(report.join.seconds for report in members if report.join)
        yield Diagnosis(
            "group", "ok", f"{format_count(len(members), 'member')} met in {format_duration(slowest)}"
        )
    for report in visit.host_reports:
        if report.join:
            used = report.join.interface or "an interface that gloo and NCCL choose"
            address = f" ({report.join.address})" if report.join.address else ""
            yield Diagnosis("interface", "ok", f"{used}{address}", visit.node_name(report))


def _group_remedy(visit: ProbeResult, report: RankReport) -> str:
    """Advice for a rank that did not meet the others, or could not exchange messages with them."""
    own, place = report.join, report.placement
    if place.node_count == 1:
        return "check that no firewall blocks connections of this host to itself, on any TCP port"
    if own is None:
        return (
            "check that no firewall separates the nodes (ranks connect on any TCP port), and that "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name an interface that reaches the other nodes"
        )
    # to meet, they have exchanged small messages
    others = (each for each in visit.reports if each.placement.node_rank != place.node_rank)
    peer = next((each.join.address for each in others if each.join and each.join.address), "")
    if not peer or own.mtu is None:
        return "small messages pass; check that the network carries packets of the MTU of the interface"
    return (
        f"small messages pass; check that the network carries packets of {own.mtu} bytes, the MTU of "
        f"{own.interface}: ping -M do -s {own.mtu - _PING_HEADERS[':' in peer]} {peer}. If they are lost, "
        f"raise the MTU of the switches, or lower it on all nodes: ip link set {own.interface} mtu 1400"
    )


def _check_host_names(visit: ProbeResult) -> Iterator[Diagnosis]:
    names = Counter(report.host_state.name for report in visit.host_reports if report.host_state)
    for name, count in names.items():
        if count > 1:
            yield Diagnosis(
                "names",
                "problem",
                f"{count} nodes have the host name {name}; torch identifies nodes by host name",
                remedy="give each node a unique host name",
            )
    for report in visit.host_reports:
        if report.host_state and not report.host_state.addresses:
            yield Diagnosis(
                "names",
                "warning",
                f"its host name {report.host_state.name} does not resolve to an address",
                visit.node_name(report),
                "add it to /etc/hosts or to the name server; without GLOO_SOCKET_IFNAME gloo looks it up",
            )


def _check_uniformity(visit: ProbeResult, allowed: Sequence[NodeDifference]) -> Iterator[Diagnosis]:
    facts = {visit.node_name(report): report.facts for report in visit.host_reports if report.facts}
    if len(facts) < 2:
        return
    differences = node_differences(facts, allowed)
    for key, how in differences.items():
        yield Diagnosis(
            "alike",
            "problem",
            how,
            remedy=f"use identical nodes, or allow the difference: may_differ: [{key}]",
        )
    if not differences:
        yield Diagnosis(
            "alike", "ok", "Python, packages, code, GPUs, driver, CPU and memory are the same everywhere"
        )


def _check_load(visit: ProbeResult) -> Iterator[Diagnosis]:
    busy = {visit.node_name(report): report.busy_cores or 0.0 for report in visit.host_reports}
    for report in visit.host_reports:
        own = busy[visit.node_name(report)]
        cores = (report.facts or {}).get("cpu_cores", 1)
        if own > max(_BUSY_CORES, _BUSY_FRACTION * cores):
            yield Diagnosis(
                "load",
                "warning",
                f"other processes keep {own:.1f} of {format_count(cores, 'core')} busy",
                visit.node_name(report),
                "stop them, or wait: trials would be marked as noisy",
            )


def _check_clocks(visit: ProbeResult) -> Iterator[Diagnosis]:
    off = {
        visit.node_name(peer): each
        for report in visit.reports
        if report.join and report.join.member == 0
        for each in report.link_tests
        if (peer := visit.report_of(each.peer)) and peer.placement.node_rank != report.placement.node_rank
    }
    for name, each in off.items():
        if abs(each.clock_ahead_s) > _MAX_CLOCK_OFFSET_S + each.round_trip_s:
            side = "ahead of" if each.clock_ahead_s > 0 else "behind"
            yield Diagnosis(
                "clock",
                "warning",
                f"{format_duration(abs(each.clock_ahead_s))} {side} the first node",
                name,
                "synchronize the clock (chrony, ntpd); distbench corrects for the offset, system logs do not",
            )
    if off and all(
        abs(each.clock_ahead_s) <= _MAX_CLOCK_OFFSET_S + each.round_trip_s for each in off.values()
    ):
        most = max(abs(each.clock_ahead_s) + each.round_trip_s / 2 for each in off.values())
        yield Diagnosis("clock", "ok", f"at most {most * 1e3:.1f} ms apart")


def _check_links(visit: ProbeResult) -> Iterator[Diagnosis]:
    links = measured_links(visit)
    for kind in dict.fromkeys(link.kind for link in links):
        alike = [link for link in links if link.kind == kind]
        median = statistics.median(link.bits_per_s for link in alike)
        trip = statistics.median(link.exchange.round_trip_s for link in alike)
        yield Diagnosis(
            "links",
            "ok",
            f"{format_count(len(alike), 'link')} {kind}: {format_bitrate(median)} each way (median), "
            f"round trip {trip * 1e6:.0f} us",
        )
        if len(alike) >= _MIN_LINKS:
            yield from _slow_links(alike)
    yield from _links_below_line_rate(visit, links)
    if totals := [report.all_reduce for report in visit.reports if report.all_reduce]:
        total = totals[0]
        busbw = (bus_factor("all_reduce", total.members) or 0.0) * total.bytes / total.seconds
        yield Diagnosis(
            "all-reduce",
            "ok",
            f"over {format_count(total.members, 'member')}: {format_bitrate(8 * busbw)} bus bandwidth",
        )


def _slow_links(links: list[NetworkLink]) -> Iterator[Diagnosis]:
    """Slow ends, and slow links between two ends that are not slow.

    An end is as fast as its fastest link: one slow node of three makes two of the three links slow.
    """
    ends = group_pairs((end, link) for link in links for end in (link.first, link.second))
    best = {end: max(link.bits_per_s for link in own) for end, own in ends.items()}
    usual = statistics.median(best.values())
    slow = [end for end in best if best[end] < _SLOW_FRACTION * usual]
    for end in slow:
        most = format_bitrate(best[end])
        text = f"its fastest link has {most}, others have {format_bitrate(usual)}"
        yield Diagnosis("links", "problem", text, end, _SLOW_LINK_REMEDY)
    for link in links:
        if link.bits_per_s < _SLOW_FRACTION * usual and not {link.first, link.second} & {*slow}:
            text = f"{format_bitrate(link.bits_per_s)}, others have {format_bitrate(usual)}"
            yield Diagnosis("links", "problem", text, link.name, _SLOW_LINK_REMEDY)


_SLOW_LINK_REMEDY = "check its cable, port and interface (ethtool -S, ibstat), and other traffic on the link"


def _links_below_line_rate(visit: ProbeResult, links: list[NetworkLink]) -> Iterator[Diagnosis]:
    speeds = {
        visit.node_name(report): report.join
        for report in visit.reports
        if report.join and report.join.speed_bits_per_s
    }
    for link in links:
        meeting = speeds.get(link.first)
        if link.kind != "between nodes" or not meeting or not meeting.speed_bits_per_s:
            continue
        if link.bits_per_s < _SLOW_FRACTION * meeting.speed_bits_per_s:
            speed = format_bitrate(meeting.speed_bits_per_s)
            text = f"{format_bitrate(link.bits_per_s)}, {meeting.interface} has {speed}"
            remedy = f"{_SLOW_LINK_REMEDY}; gloo with one connection may not reach it, NCCL should"
            yield Diagnosis("links", "warning", text, link.name, remedy)


def _check_peer_access(visit: ProbeResult) -> Iterator[Diagnosis]:
    for report in visit.reports:
        if report.blocked_peers:
            others = ", ".join(map(str, report.blocked_peers))
            yield Diagnosis(
                "peer access",
                "warning",
                f"GPU {report.placement.local_rank} can't access GPU {others} directly",
                visit.node_name(report),
                "collectives go through the host; see nvidia-smi topo -p2p r, and ACS in the BIOS",
            )


def _make_link(visit: ProbeResult, report: RankReport, peer: RankReport, exchange: LinkTest) -> NetworkLink:
    if peer.placement.node_rank != report.placement.node_rank:
        return NetworkLink(visit.node_name(report), visit.node_name(peer), "between nodes", exchange)
    ends = [f"{visit.node_name(each)} rank {each.placement.rank}" for each in (report, peer)]
    return NetworkLink(ends[0], ends[1], "inside nodes", exchange)
