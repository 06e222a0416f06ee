"""Findings on the nodes together: whether they came, met, are alike, agree on the time, and how links do."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distbench.core.grouping import gathered
from distbench.core.units import bits_text, count_text, duration_text
from distbench.doctor.findings import Finding
from distbench.doctor.rank_probe import Visit
from distbench.ipc.diagnosis_files import Exchange, Report
from distbench.launchers.nodes import Difference, differences
from distbench.metrics.communication.traffic import bus_factor

# beyond it the times of logs on two nodes can't be set side by side
_OFFSET_S = 1.0
# of the median link of its kind, or of the speed that the hardware says it has
_SLOW = 0.5
# below it a median says nothing of the others
_LINKS = 3
_BUSY = 0.1
_CORES = 0.5


@dataclass(frozen=True)
class Link:
    """An exchange, with the names of its ends."""

    first: str
    second: str
    kind: str
    """``between nodes`` or ``inside nodes``."""
    exchange: Exchange

    @property
    def name(self) -> str:
        """Of its ends."""
        return f"{self.first} - {self.second}"

    @property
    def bits_per_s(self) -> float:
        """Bits that went over it in each of the two directions, which were busy at the same time."""
        return 8 * self.exchange.bytes / self.exchange.seconds


def links_of(visit: Visit) -> list[Link]:
    """The links that were tried."""
    return [
        _link(visit, report, peer, each)
        for report in visit.reports
        for each in report.exchanges
        if (peer := visit.member(each.peer))
    ]


def of_all(visit: Visit, allowed: Sequence[Difference]) -> Iterator[Finding]:
    """Findings of *visit*; nodes may differ in what is *allowed*."""
    yield from _came(visit)
    if visit.failure:
        return
    yield from _met(visit)
    yield from _names(visit)
    yield from _alike(visit, allowed)
    yield from _idle(visit)
    yield from _clocks(visit)
    yield from _links(visit)
    yield from _peers(visit)


_SILENT = "see that python -m distbench.worker runs there, in the environment of the command"


def _came(visit: Visit) -> Iterator[Finding]:
    if visit.failure:
        yield Finding("nodes", "problem", visit.failure, remedy="see docs/clusters.md on what the nodes need")
        return
    names = [visit.name(report) for report in visit.hosts]
    text = f"{count_text(len(names), 'node')}, {count_text(visit.ranks, 'rank')}: {', '.join(names)}"
    yield Finding("nodes", "ok", text)


def _met(visit: Visit) -> Iterator[Finding]:
    members = [report for report in visit.reports if report.meeting]
    silent = visit.missing.keys() - {report.placement.rank for report in visit.reports}
    for rank in sorted(silent):
        where = ", ".join(filter(None, [visit.nodes.get(rank, ""), f"rank {rank}"]))
        yield Finding("group", "problem", f"it has reported nothing: {visit.missing[rank]}", where, _SILENT)
    for report in visit.reports:
        if report.error or report.placement.rank in visit.missing:
            why = report.error or f"rank {report.placement.rank} {visit.missing[report.placement.rank]}"
            stage = "exchanging messages" if report.meeting else "meeting the others"
            yield Finding(
                "group",
                "problem",
                f"{stage}: {why}",
                f"{visit.name(report)}, rank {report.placement.rank}",
                "see that no firewall is between the nodes, whose ranks connect on any TCP port, and that "
                "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME name an interface that reaches the others",
            )
    if members:
        slowest = max(report.meeting.seconds for report in members if report.meeting)
        yield Finding("group", "ok", f"{count_text(len(members), 'member')} met in {duration_text(slowest)}")
    for report in visit.hosts:
        if report.meeting:
            used = report.meeting.interface or "an interface that gloo and NCCL choose"
            address = f" ({report.meeting.address})" if report.meeting.address else ""
            yield Finding("interface", "ok", f"{used}{address}", visit.name(report))


def _names(visit: Visit) -> Iterator[Finding]:
    names = Counter(report.condition.name for report in visit.hosts if report.condition)
    for name, count in names.items():
        if count > 1:
            yield Finding(
                "names",
                "problem",
                f"{count} nodes call themselves {name}; torch tells nodes apart by their names",
                remedy="give each a host name of its own",
            )
    for report in visit.hosts:
        if report.condition and not report.condition.resolves_to:
            yield Finding(
                "names",
                "warning",
                f"its own name {report.condition.name} resolves to no address",
                visit.name(report),
                "add it to /etc/hosts or to the name server; without GLOO_SOCKET_IFNAME gloo asks for it",
            )


def _alike(visit: Visit, allowed: Sequence[Difference]) -> Iterator[Finding]:
    facts = {visit.name(report): report.facts for report in visit.hosts if report.facts}
    if len(facts) < 2:
        return
    apart = differences(facts, allowed)
    for key, how in apart.items():
        yield Finding(
            "alike", "problem", how, remedy=f"make them alike, or allow it with may_differ: [{key}]"
        )
    if not apart:
        yield Finding(
            "alike", "ok", "Python, packages, code, GPUs, driver, CPU and memory are the same everywhere"
        )


def _idle(visit: Visit) -> Iterator[Finding]:
    busy = {visit.name(report): report.busy_cores or 0.0 for report in visit.hosts}
    for report in visit.hosts:
        own = busy[visit.name(report)]
        cores = (report.facts or {}).get("cpu_cores", 1)
        if own > max(_CORES, _BUSY * cores):
            yield Finding(
                "load",
                "warning",
                f"other work keeps {own:.1f} of {count_text(cores, 'core')} busy",
                visit.name(report),
                "end it, or wait: trials would be marked as noisy",
            )


def _clocks(visit: Visit) -> Iterator[Finding]:
    off = {
        visit.name(peer): each
        for report in visit.reports
        if report.meeting and report.meeting.member == 0
        for each in report.exchanges
        if (peer := visit.member(each.peer)) and peer.placement.node != report.placement.node
    }
    for name, each in off.items():
        if abs(each.clock_ahead_s) > _OFFSET_S + each.round_trip_s:
            side = "ahead of" if each.clock_ahead_s > 0 else "behind"
            yield Finding(
                "clock",
                "warning",
                f"{duration_text(abs(each.clock_ahead_s))} {side} the first node",
                name,
                "have chrony or ntpd set it; runs follow the first clock, logs of the system don't",
            )
    if off and all(abs(each.clock_ahead_s) <= _OFFSET_S + each.round_trip_s for each in off.values()):
        most = max(abs(each.clock_ahead_s) + each.round_trip_s / 2 for each in off.values())
        yield Finding("clock", "ok", f"at most {most * 1e3:.1f} ms apart")


def _links(visit: Visit) -> Iterator[Finding]:
    links = links_of(visit)
    for kind in dict.fromkeys(link.kind for link in links):
        alike = [link for link in links if link.kind == kind]
        median = statistics.median(link.bits_per_s for link in alike)
        trip = statistics.median(link.exchange.round_trip_s for link in alike)
        yield Finding(
            "links",
            "ok",
            f"{count_text(len(alike), 'link')} {kind}: {bits_text(median)} each way (median), "
            f"round trip {trip * 1e6:.0f} us",
        )
        if len(alike) >= _LINKS:
            yield from _slow(alike)
    yield from _below_hardware(visit, links)
    if totals := [report.total for report in visit.reports if report.total]:
        total = totals[0]
        busbw = (bus_factor("all_reduce", total.members) or 0.0) * total.bytes / total.seconds
        yield Finding(
            "all-reduce",
            "ok",
            f"over {count_text(total.members, 'member')}: {bits_text(8 * busbw)} bus bandwidth",
        )


def _slow(alike: list[Link]) -> Iterator[Finding]:
    """Ends that are slow, and slow links between two that are not.

    An end is as fast as its fastest link: one slow node of three makes two of the three links slow.
    """
    ends = gathered((end, link) for link in alike for end in (link.first, link.second))
    best = {end: max(link.bits_per_s for link in own) for end, own in ends.items()}
    usual = statistics.median(best.values())
    slow = [end for end in best if best[end] < _SLOW * usual]
    for end in slow:
        text = f"none of its links has more than {bits_text(best[end])}, others have {bits_text(usual)}"
        yield Finding("links", "problem", text, end, _CABLE)
    for link in alike:
        if link.bits_per_s < _SLOW * usual and not {link.first, link.second} & {*slow}:
            text = f"{bits_text(link.bits_per_s)}, others have {bits_text(usual)}"
            yield Finding("links", "problem", text, link.name, _CABLE)


_CABLE = "look at its cable, port and interface (ethtool -S, ibstat), and at who else uses it"


def _below_hardware(visit: Visit, links: list[Link]) -> Iterator[Finding]:
    speeds = {
        visit.name(report): report.meeting
        for report in visit.reports
        if report.meeting and report.meeting.speed_bits_per_s
    }
    for link in links:
        meeting = speeds.get(link.first)
        if link.kind != "between nodes" or not meeting or not meeting.speed_bits_per_s:
            continue
        if link.bits_per_s < _SLOW * meeting.speed_bits_per_s:
            text = (
                f"{bits_text(link.bits_per_s)}, {meeting.interface} has {bits_text(meeting.speed_bits_per_s)}"
            )
            remedy = f"{_CABLE}; gloo with one connection may not reach it, NCCL should"
            yield Finding("links", "warning", text, link.name, remedy)


def _peers(visit: Visit) -> Iterator[Finding]:
    for report in visit.reports:
        if report.blocked_peers:
            others = ", ".join(map(str, report.blocked_peers))
            yield Finding(
                "peer access",
                "warning",
                f"GPU {report.placement.local_rank} can't access GPU {others} directly",
                visit.name(report),
                "collectives go through the host; see nvidia-smi topo -p2p r, and ACS in the BIOS",
            )


def _link(visit: Visit, report: Report, peer: Report, exchange: Exchange) -> Link:
    if peer.placement.node != report.placement.node:
        return Link(visit.name(report), visit.name(peer), "between nodes", exchange)
    ends = [f"{visit.name(each)} rank {each.placement.rank}" for each in (report, peer)]
    return Link(ends[0], ends[1], "inside nodes", exchange)
