"""The Python environments that the cases of a run ran in, and the versions in which each differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distbench.analysis.settings import software
from distbench.core.case import CURRENT
from distbench.core.grouping import gathered
from distbench.core.text import listed, one_line
from distbench.record import Record

Versions = Mapping[str, tuple[str, ...]]
"""Package, or ``python`` -> its versions, of which there is one unless it was changed between sessions."""


def installed(records: Sequence[Record]) -> dict[str, Versions]:
    """Environment -> versions that the ranks of its trials reported, the current one first."""
    names = sorted({record.case.environment for record in records}, key=lambda name: name != CURRENT)
    return {
        name: versions
        for name in names
        if (versions := _versions([record for record in records if record.case.environment == name]))
    }


def sentences(records: Sequence[Record]) -> list[str]:
    """What each environment but the current one has in other versions."""
    found = installed(records)
    ours = found.pop(CURRENT, {})
    return [f"@{name}: another Python environment, {_apart(theirs, ours)}." for name, theirs in found.items()]


def apart(theirs: Versions, ours: Versions) -> dict[str, tuple[str, ...]]:
    """Versions of *theirs* that *ours* do not have."""
    return {package: versions for package, versions in theirs.items() if versions != ours.get(package)}


def _apart(theirs: Versions, ours: Versions) -> str:
    if not ours:
        return f"with {listed([_text(package, versions) for package, versions in theirs.items()])}"
    words = [
        f"{_text(package, versions)} (current: {_versions_text(ours.get(package, ('none',)))})"
        for package, versions in apart(theirs, ours).items()
    ]
    words += [f"no {one_line(package)}" for package in ours if package not in theirs]
    return (
        f"with {listed(words)}" if words else "with the versions of the current one in all that is recorded"
    )


def _versions(records: Sequence[Record]) -> Versions:
    every = gathered(pair for record in records for pair in software(record).items())
    return {package: tuple(dict.fromkeys(versions)) for package, versions in every.items()}


def _text(package: str, versions: tuple[str, ...]) -> str:
    return f"{one_line(package)} {_versions_text(versions)}"


def _versions_text(versions: tuple[str, ...]) -> str:
    return one_line(" or ".join(versions))
