"""Changes between two revisions that no rank reads, so that the times of the arms need not be compared."""

from __future__ import annotations

from pathlib import PurePosixPath

from distbench.core.text import join_limited
from distbench.core.units import format_count
from distbench.gate.arms import GateArm
from distbench.gate.losses import loss_findings
from distbench.record import Record

_DOCUMENT_SUFFIXES = (".md", ".rst")
_DOCUMENT_FOLDERS = ("docs", ".github")
_DOCUMENT_NAMES = ("LICENSE", ".gitignore", ".gitattributes")


def unread_changes(baseline: GateArm, candidate: GateArm) -> str | None:
    """Description of the changes if ranks can only read them by importing Python modules; otherwise None.

    Documents are never read; Python modules show in ``Record.code``. None also for arms that differ by more
    than the revision.
    """
    files = baseline.changed_files
    if files is None or _settings(baseline) != _settings(candidate):
        return None
    if any(not _is_document(file) and file.suffix != ".py" for file in files):
        return None
    if not files:
        return f"no file differs from {baseline.title}"
    listed = join_limited([str(file) for file in files], limit=5)
    verb = "differs" if len(files) == 1 else "differ"
    return f"{format_count(len(files), 'file')} that no rank imports ({listed}) {verb} from {baseline.title}"


def imports_same_code(before: Record, after: Record) -> bool:
    """True if the ranks of both trials imported the same files, and trained alike."""
    if not before.code or before.code != after.code:
        return False
    return all(finding.word == "pass" for finding in loss_findings([(before, after)], "required"))


def _settings(arm: GateArm) -> tuple[object, ...]:
    """All by which *arm* may differ from the other but for its files."""
    suite = {key: value for key, value in arm.suite.to_resolved().items() if key != "gate"}
    # that of a revision names the folders of its files
    variables = {name: value for name, value in arm.target.environment.items() if name != "PYTHONPATH"}
    return suite, variables, arm.target.python


def _is_document(file: PurePosixPath) -> bool:
    return (
        file.suffix in _DOCUMENT_SUFFIXES
        or file.parts[0] in _DOCUMENT_FOLDERS
        or file.name in _DOCUMENT_NAMES
    )
