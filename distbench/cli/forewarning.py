"""What is wrong with this host, told before a run begins: what takes ``distbench doctor`` no time."""

from __future__ import annotations

from pathlib import Path

from distbench.condition import condition_of
from distbench.doctor import of_host
from distbench.env import cache_folder
from distbench.run import Execution
from distbench.run.control import Observer


def forewarn(execution: Execution, observer: Observer) -> None:
    """Note what may spoil *execution* on this host; of others, on which ranks may be, it says nothing."""
    folders: list[Path] = [execution.run.folder, cache_folder()]
    ranks = max((planned.case.world_size for planned in execution.plan.cases), default=1)
    for finding in of_host(condition_of(folders, cache_folder() / "ops", look_up=False), ranks):
        observer.note(f"{finding.grade}: {finding.check}: {finding.what}; {finding.remedy}")
