"""Python environments of a run's cases, and the package versions in which they differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distbench.analysis.settings import software_versions
from distbench.core.case import CURRENT_ENVIRONMENT
from distbench.core.grouping import group_pairs
from distbench.core.text import join_limited, one_line
from distbench.record import Record

PackageVersions = Mapping[str, tuple[str, ...]]
"""Package or ``python`` -> its versions: one, unless it was changed between sessions."""


def versions_by_environment(records: Sequence[Record]) -> dict[str, PackageVersions]:
    """Environment -> versions that the ranks of its trials reported, the current one first."""
    names = sorted(
        {record.case.environment for record in records}, key=lambda name: name != CURRENT_ENVIRONMENT
    )
    return {
        name: versions
        for name in names
        if (versions := _versions([record for record in records if record.case.environment == name]))
    }


def environment_sentences(records: Sequence[Record]) -> list[str]:
    """Sentence for each environment other than the current one, with the versions that differ."""
    found = versions_by_environment(records)
    ours = found.pop(CURRENT_ENVIRONMENT, {})
    return [
        f"@{name}: another Python environment, {_version_differences_text(theirs, ours)}."
        for name, theirs in found.items()
    ]


def version_differences(theirs: PackageVersions, ours: PackageVersions) -> dict[str, tuple[str, ...]]:
    """Versions in *theirs* that *ours* does not have."""
    return {package: versions for package, versions in theirs.items() if versions != ours.get(package)}


def _version_differences_text(theirs: PackageVersions, ours: PackageVersions) -> str:
    if not ours:
        return (
            f"with {join_limited([_package_text(package, versions) for package, versions in theirs.items()])}"
        )
    words = [
        f"{_package_text(package, versions)} (current: {_versions_text(ours.get(package, ('none',)))})"
        for package, versions in version_differences(theirs, ours).items()
    ]
    words += [f"no {one_line(package)}" for package in ours if package not in theirs]
    return (
        f"with {join_limited(words)}"
        if words
        else "with the versions of the current one in all that is recorded"
    )


def _versions(records: Sequence[Record]) -> PackageVersions:
    every = group_pairs(pair for record in records for pair in software_versions(record).items())
    return {package: tuple(dict.fromkeys(versions)) for package, versions in every.items()}


def _package_text(package: str, versions: tuple[str, ...]) -> str:
    return f"{one_line(package)} {_versions_text(versions)}"


def _versions_text(versions: tuple[str, ...]) -> str:
    return one_line(" or ".join(versions))
