"""The case to use for each amount of device memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from distbench.analysis.choice import Candidate, Requirements, Selection, select_case
from distbench.core.units import format_bytes, format_count


def memory_thresholds(candidates: Sequence[Candidate], selection: Selection) -> list[tuple[float, Selection]]:
    """Device memory below which the choice changes, with the new choice, in descending order."""
    changes, now = [], selection
    while now.pick is not None and now.pick.memory is not None:
        below = now.pick.memory
        # the largest number below the memory that the pick needs
        now = select_case(candidates, replace(selection.requirements, memory=below * (1 - 2**-40)))
        changes.append((below, now))
    return changes


@dataclass(frozen=True)
class MemoryRange:
    """A range of device memory, and the case to use in it."""

    at_least: float
    """Lower bound in bytes, inclusive."""
    below: float | None
    """Upper bound in bytes, exclusive; None: no limit."""
    pick: Candidate | None
    """None: no measured case fits."""

    @property
    def range_text(self) -> str:
        """``72.5 MiB or more``, ``67.4 MiB to 72.5 MiB``, ``below 64.8 MiB``."""
        if self.below is None:
            return f"{format_bytes(self.at_least)} or more"
        if not self.at_least:
            return f"below {format_bytes(self.below)}"
        return f"{format_bytes(self.at_least)} to {format_bytes(self.below)}"


def memory_ranges(candidates: Sequence[Candidate]) -> list[MemoryRange]:
    """Choices among *candidates* without further requirements, from much device memory to little.

    Empty if there is no choice, or if the memory that the first choice needs is unknown.
    """
    choice = select_case(candidates, Requirements())
    found: list[MemoryRange] = []
    pick, below = choice.pick, None
    for least, then in memory_thresholds(candidates, choice):
        found.append(MemoryRange(least, below, pick))
        pick, below = then.pick, least
    # a pick of unknown memory ends the list: the choice below its range is unknown, too
    return [*found, MemoryRange(0.0, below, None)] if found and pick is None else found


def memory_ranges_sentence(found: Sequence[MemoryRange], devices: int) -> str:
    """The memory ranges as a sentence."""
    parts = [
        f"{branch.range_text}: {branch.pick.name} ({branch.pick.speed.text()} tokens/s)"
        if branch.pick and branch.pick.speed
        else f"{branch.range_text}: no measured case fits"
        for branch in found
    ]
    return f"Choice by device memory, on {format_count(devices, 'device')}: {'; '.join(parts)}."
