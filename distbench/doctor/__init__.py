"""Diagnose hosts, network and limits before a run."""

from collections.abc import Sequence

from distbench.doctor.cluster_checks import NetworkLink, check_cluster, measured_links
from distbench.doctor.host_checks import Diagnosis, Severity, check_host
from distbench.doctor.rank_probe import ProbeResult, probe_ranks
from distbench.launchers.nodes import NodeDifference

__all__ = [
    "Diagnosis",
    "NetworkLink",
    "ProbeResult",
    "Severity",
    "check_host",
    "diagnose",
    "measured_links",
    "probe_ranks",
]


def diagnose(visit: ProbeResult, may_differ: Sequence[NodeDifference] = ()) -> list[Diagnosis]:
    """Diagnose the results of the probe *visit*; differences named in *may_differ* are allowed."""
    found = list(check_cluster(visit, may_differ))
    for report in visit.host_reports:
        if report.host_state:
            found += check_host(report.host_state, visit.ranks, where=visit.node_name(report))
    return found
