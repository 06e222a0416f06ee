"""What to take by the memory of a device: the turns of a choice, as the branches of a small decision tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from distbench.analysis.choice import Candidate, Wish, choose, turns
from distbench.core.units import bytes_text, count_text


@dataclass(frozen=True)
class Branch:
    """A range of device memory, and the case to take in it."""

    least: float
    """Bytes from which on it holds."""
    below: float | None
    """Bytes below which it holds; None: no limit."""
    pick: Candidate | None
    """None: no measured case fits."""

    @property
    def range_text(self) -> str:
        """``72.5 MiB or more``, ``67.4 to 72.5 MiB``, ``below 64.8 MiB``."""
        if self.below is None:
            return f"{bytes_text(self.least)} or more"
        if not self.least:
            return f"below {bytes_text(self.below)}"
        return f"{bytes_text(self.least)} to {bytes_text(self.below)}"


def branches(candidates: Sequence[Candidate]) -> list[Branch]:
    """What is chosen among *candidates* without other wishes, from much device memory to little.

    Empty if nothing is, or if the memory that the first choice needs is not known.
    """
    choice = choose(candidates, Wish())
    found: list[Branch] = []
    pick, below = choice.pick, None
    for least, then in turns(candidates, choice):
        found.append(Branch(least, below, pick))
        pick, below = then.pick, least
    # a pick of unknown memory ends the turns: what is below its range is not known either
    return [*found, Branch(0.0, below, None)] if found and pick is None else found


def sentence(found: Sequence[Branch], devices: int) -> str:
    """The branches in words."""
    said = [
        f"{branch.range_text}: {branch.pick.name} ({branch.pick.speed.text()} tokens/s)"
        if branch.pick and branch.pick.speed
        else f"{branch.range_text}: no measured case fits"
        for branch in found
    ]
    return f"By the memory of a device, on {count_text(devices, 'device')}: {'; '.join(said)}."
