"""Releases of torch that are the first with something that some cases need. Imports no torch.

All else works with every torch that pyproject.toml allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distbench.core.case import Case
from distbench.core.machine import Machine, parse_release
from distbench.strategies.base import Strategy
from distbench.strategies.pp.schedules import SCHEDULES


@dataclass(frozen=True)
class TorchMinimum:
    """Something that torch has from a release on, and the cases that can't do without it."""

    release: str
    """First release that has it."""
    why_older_fails: str
    """Why older ones will not do."""
    strategy: str = ""
    """Strategy whose cases need it; empty: any."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options with which that strategy needs it; empty: it always does."""
    package: str = ""
    """Package whose use needs it; empty: cases need it whatever they import."""
    workaround: str = ""
    """What to do on an older torch besides getting a newer one."""

    @property
    def subject(self) -> str:
        """Strategy, options or package that needs it, as messages name it."""
        chosen = ", ".join(f"{name}: {value}" for name, value in self.options.items())
        return chosen or self.package or self.strategy

    def applies_to(self, case: Case, strategy: Strategy, packages: Iterable[str]) -> bool:
        """True if *case*, trained by *strategy* with *packages*, needs it."""
        return (
            self.strategy in ("", case.strategy.name)
            and all(getattr(strategy, name) == value for name, value in self.options.items())
            and (not self.package or self.package in packages)
        )


TORCH_MINIMA = (
    # before pp, so that no one gets a torch that is too old as well
    *(
        TorchMinimum(
            "2.12",
            "a rank of an older one sends its first message to itself, which gloo refuses",
            strategy="pp",
            options={"schedule": name},
            workaround="with torch 2.10 or 2.11 use another schedule",
        )
        for name, rules in SCHEDULES.items()
        if rules.is_v_shaped
    ),
    TorchMinimum(
        "2.10",
        "older schedules always return outputs, and with gloo their first message fails",
        strategy="pp",
        workaround="zero: {stage: 1, mesh: {pp: 2}} has DeepSpeed's pipelines",
    ),
    TorchMinimum(
        "2.10",
        "older releases have an incompatible prototype of ring attention",
        strategy="cp",
        options={"implementation": "ring"},
        workaround="use implementation: ulysses",
    ),
    # the oldest torchao that distbench supports, 0.18: torch.nn.functional.ScalingType
    TorchMinimum("2.10", "with an older one its import fails", package="torchao"),
)


def torch_problem(case: Case, strategy: Strategy, packages: Iterable[str], machine: Machine) -> str | None:
    """Reason why the torch of *machine* is too old for *case*; None: it is not, or is not installed.

    *packages* are those that the case uses besides torch.
    """
    version, used = machine.packages.get("torch"), {*packages}
    if version is None:
        return None
    for minimum in TORCH_MINIMA:
        if minimum.applies_to(case, strategy, used) and parse_release(version) < parse_release(
            minimum.release
        ):
            needed = f"{minimum.subject} needs torch {minimum.release} or newer, but {version} is installed"
            return f"{needed}: {minimum.why_older_fails}; {minimum.workaround or 'install a newer torch'}"
    return None
