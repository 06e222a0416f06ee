"""The doctor: whether ranks can be started here, meet, and train undisturbed, before anything is timed."""

from collections.abc import Sequence

from distbench.doctor.cluster_checks import Link, links_of, of_all
from distbench.doctor.findings import Finding, Grade
from distbench.doctor.host_checks import of_host
from distbench.doctor.rank_probe import Visit, visit
from distbench.launchers.nodes import Difference

__all__ = ["Finding", "Grade", "Link", "Visit", "findings", "links_of", "of_host", "visit"]


def findings(visit: Visit, may_differ: Sequence[Difference] = ()) -> list[Finding]:
    """Everything that *visit* has found; nodes may differ in what *may_differ* names."""
    found = list(of_all(visit, may_differ))
    for report in visit.hosts:
        if report.condition:
            found += of_host(report.condition, visit.ranks, where=visit.name(report))
    return found
