"""``gate``: what may change between two arms of a suite, and how sure a verdict has to be."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.spec.checking import Bound, Finding, check, set_bounds
from distbench.spec.places import KeyPath
from distbench.units import parse_fraction

Demand = Literal["required", "ignored"]
MOST_PAIRS = 1000
"""What ``max_pairs`` takes at most: a thousand pairs resolve what no machine keeps still for."""


@dataclass(frozen=True)
class Tolerances:
    """How much worse each number may be, as a fraction of the baseline; None: it is not gated."""

    tokens_per_s: float | None = 0.03
    """Slow-down of the step: 0.03 is one 1.03 times as long. Also half the width of a verdict's interval."""
    efficiency: float | None = 0.05
    """The same of scaling efficiency: its noise is that of four trials, so it takes more to be seen."""
    peak_memory: float | None = 0.01
    """Growth of the peak of a rank's memory."""
    comm_bytes: float | None = 0.0
    """Growth of the bytes communicated in a step."""
    comm_calls: float | None = 0.0
    """Growth of the number of collectives in a step."""


@dataclass(frozen=True)
class Gate:
    """The rules of ``distbench gate``."""

    tolerances: Tolerances = field(default_factory=Tolerances)
    strategies: dict[str, Tolerances] = field(default_factory=dict)
    """Glob on label or name of a case -> its own tolerances, whole; the first that matches rules."""
    equivalence: Demand = "ignored"
    """required: the candidate must be the same training as its reference (check is switched on)."""
    convergence: Demand = "ignored"
    """required: the candidate must converge as its reference does (the suite says converge)."""
    min_pairs: int = 5
    """Pairs of trials before the first look."""
    max_pairs: int = 20
    """Pairs of trials of a case at most, in each of the two series."""
    minutes: float | None = None
    """Time after which no further pair is begun."""

    def of(self, label: str, name: str) -> Tolerances:
        """Return the tolerances of the case of that label and name."""
        for glob, own in self.strategies.items():
            if fnmatch.fnmatchcase(label, glob) or fnmatch.fnmatchcase(name, glob):
                return own
        return self.tolerances

    def resolved(self) -> dict[str, Any]:
        """Return it as it may stand in a suite, every default decided."""
        plain = dataclasses.asdict(self)
        return {**_shown(plain.pop("tolerances")), **plain, "strategies": _all_shown(plain["strategies"])}


@dataclass(frozen=True)
class _Keys:
    """What a suite may write under ``gate``; the tolerances are read by themselves."""

    tokens_per_s: Any = None
    efficiency: Any = None
    peak_memory: Any = None
    comm_bytes: Any = None
    comm_calls: Any = None
    strategies: dict[str, dict[str, Any]] = field(default_factory=dict)
    equivalence: Demand = "ignored"
    convergence: Demand = "ignored"
    min_pairs: int = 5
    max_pairs: int = 20
    minutes: float | None = None


# a t interval holds from three pairs on
set_bounds(
    _Keys,
    {
        "min_pairs": Bound(3, MOST_PAIRS),
        "max_pairs": Bound(3, MOST_PAIRS),
        "minutes": Bound(0, open_low=True),
    },
)
NOISY = ("tokens_per_s", "efficiency")
"""What differs from trial to trial; the others are counted, and one trial tells them."""
_TOLERANCES = tuple(one.name for one in dataclasses.fields(Tolerances))


def read(raw: Mapping[str, Any], path: KeyPath = ("gate",)) -> tuple[Gate | None, list[Finding]]:
    """Return the rules that the mapping *raw* at *path* describes, or None and all that is wrong."""
    keys, findings = check(_Keys, raw, path)
    base, wrong = _tolerances({k: v for k, v in raw.items() if k in _TOLERANCES}, path, Tolerances())
    findings += wrong
    strategies, wrong = _of_strategies(raw.get("strategies"), (*path, "strategies"), base)
    findings += wrong
    if keys and keys.min_pairs > keys.max_pairs:
        message = f"must be at most max_pairs = {keys.max_pairs}"
        findings.append(Finding((*path, "min_pairs"), message, keys.min_pairs))
    if findings or keys is None:
        return None, findings
    plain = {one.name: getattr(keys, one.name) for one in dataclasses.fields(keys)}
    rest = {key: value for key, value in plain.items() if key not in (*_TOLERANCES, "strategies")}
    return Gate(tolerances=base, strategies=strategies, **rest), []


def _of_strategies(raw: Any, path: KeyPath, base: Tolerances) -> tuple[dict[str, Tolerances], list[Finding]]:
    """Return the tolerances by glob, and what is wrong within them; what is no mapping is told elsewhere."""
    found: dict[str, Tolerances] = {}
    findings = []
    for glob, own in raw.items() if isinstance(raw, Mapping) else ():
        if isinstance(own, Mapping):
            known = {key: value for key, value in own.items() if key in _TOLERANCES}
            _, unknown = check(Tolerances, {key: None for key in own if key not in known}, (*path, glob))
            found[str(glob)], wrong = _tolerances(known, (*path, glob), base)
            findings += [*unknown, *wrong]
    return found, findings


def _tolerances(
    raw: Mapping[str, Any], path: KeyPath, default: Tolerances
) -> tuple[Tolerances, list[Finding]]:
    found: dict[str, float | None] = {}
    findings = []
    for key, value in raw.items():
        try:
            found[key] = _tolerance(key, value)
        except ValueError as error:
            findings.append(Finding((*path, key), str(error), value))
    return dataclasses.replace(default, **found), findings


def _tolerance(key: str, value: Any) -> float | None:
    """Return the fraction that *value* names: ``3%``, ``0.03``, ``{max_drop: 3%}``; None for ``false``.

    Raises:
        ValueError: it names none.
    """
    if isinstance(value, dict) and len(value) == 1 and not {*value} - {"max_drop", "max_increase"}:
        (value,) = value.values()
    if value is False:
        return None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        fraction = parse_fraction(str(value))
        if not fraction and key in NOISY:
            raise ValueError("no measurement is so sure; a part above 0, such as 3%, or false for no gate")
        return fraction
    raise ValueError("expected a part from 0 to 1, such as 3%, 0.03 or {max_drop: 3%}, or false")


def _shown(tolerances: Mapping[str, float | None]) -> dict[str, float | bool]:
    return {key: False if value is None else value for key, value in tolerances.items()}


def _all_shown(strategies: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    return {glob: _shown(own) for glob, own in strategies.items()}
