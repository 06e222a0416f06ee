"""``gate``: allowed changes between two arms of a suite, and how certain a verdict must be."""

import dataclasses
import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from distbench.core import registry
from distbench.core.bounds import Bound, Positive
from distbench.core.job import MEASURE
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.core.units import parse_fraction
from distbench.suite.sections import check_section

VerdictDemand = Literal["required", "ignored"]
MAX_PAIRS = 1000
"""Upper limit of ``max_pairs``: more than a thousand pairs take longer than a machine stays quiet."""
# a t interval holds from three pairs on
_Pairs = Annotated[int, Bound(3, MAX_PAIRS)]


@dataclass(frozen=True)
class Tolerances:
    """Allowed worsening of each number, as a fraction of the baseline; None: not gated."""

    tokens_per_s: float | None = 0.03
    """Slowdown per step: 0.03 allows a 3% longer step. A verdict's interval has half this width."""
    efficiency: float | None = 0.05
    """Loss of scaling efficiency, which has the noise of four trials and is harder to resolve."""
    peak_memory: float | None = 0.01
    """Growth of the peak memory per rank; it may vary from trial to trial, so it is judged over pairs."""
    comm_bytes: float | None = 0.0
    """Growth of the bytes communicated per step."""
    comm_calls: float | None = 0.0
    """Growth of the number of collectives per step."""
    startup: float | None = None
    """Growth of the time from the launch to the first timed step."""


@dataclass(frozen=True)
class GateRules:
    """The rules of ``distbench gate``."""

    tolerances: Tolerances = field(default_factory=Tolerances)
    strategies: dict[str, Tolerances] = field(default_factory=dict)
    """Glob on the label or name of a case -> its tolerances; the first match applies."""
    loss: VerdictDemand = "required"
    """required: at each step, the candidate must have the loss of the baseline, except for rounding."""
    equivalence: VerdictDemand = "ignored"
    """required: the candidate must be equivalent to its reference (turns on check)."""
    convergence: VerdictDemand = "ignored"
    """required: the candidate must converge like its reference (needs converge in the suite)."""
    required: tuple[str, ...] = ()
    """Other kinds of verdict that the candidate must have (``checkpoint: required``)."""
    columns: dict[str, float] = field(default_factory=dict)
    """Those of them whose columns are compared, too -> allowed worsening; in a suite ``links: 10%``."""
    min_pairs: _Pairs = 5
    """Pairs of trials before the first look."""
    max_pairs: _Pairs = 20
    """Maximum pairs of trials per case, in each of the two series."""
    minutes: Positive | None = None
    """Minutes from the start of the gate, building C++ ops included, after which no new pair starts; null: no
    limit."""

    @property
    def required_kinds(self) -> tuple[str, ...]:
        """Kinds of verdict that the candidate must have."""
        own = tuple(kind for kind in ("equivalence", "convergence") if getattr(self, kind) == "required")
        return own + self.required

    @property
    def for_pinned_baseline(self) -> "GateRules":
        """The rules for an older, pinned baseline: only gradual changes of measured numbers."""

        def measured(own: Tolerances) -> Tolerances:
            return dataclasses.replace(own, comm_bytes=None, comm_calls=None)

        return dataclasses.replace(
            self,
            tolerances=measured(self.tolerances),
            strategies={glob: measured(own) for glob, own in self.strategies.items()},
            loss="ignored",
            equivalence="ignored",
            convergence="ignored",
            required=(),
            columns={},
        )

    def tolerances_for(self, label: str, name: str) -> Tolerances:
        """Tolerances of the case with that label and name."""
        for glob, own in self.strategies.items():
            if matches_case(glob, label, name):
                return own
        return self.tolerances

    def to_resolved(self) -> dict[str, Any]:
        """The section as in a suite, with all defaults."""
        plain = dataclasses.asdict(self)
        shown = {**_to_yaml(plain.pop("tolerances")), **dict.fromkeys(plain.pop("required"), "required")}
        strategies = {glob: _to_yaml(own) for glob, own in plain.pop("strategies").items()}
        return {**shown, **plain.pop("columns"), **plain, "strategies": strategies}


def matches_case(glob: str, label: str, name: str) -> bool:
    """True if the tolerances of *glob* are meant for the case with that label and name."""
    # the first parts of a name match too, as in ``only``
    whole = fnmatch.fnmatchcase(label, glob) or fnmatch.fnmatchcase(name, glob)
    return whole or fnmatch.fnmatchcase(name, f"{glob}/*")


_TIMED_METRICS = ("tokens_per_s", "efficiency", "startup")
"""Numbers that are never the same twice, so that a tolerance of 0 can't be met."""
PAIRED_METRICS = (*_TIMED_METRICS, "peak_memory")
"""Numbers that may vary from trial to trial, so they are judged over pairs; the others are counted."""
_TOLERANCE_KEYS = tuple(field.name for field in dataclasses.fields(Tolerances))
_RULE_FIELDS = {field.name: field for field in dataclasses.fields(GateRules)}
PLAIN_KEYS = ("loss", "equivalence", "convergence", "min_pairs", "max_pairs", "minutes")
"""Keys of the section whose values are stored unchanged."""
_Keys = dataclasses.make_dataclass(
    "_Keys",
    [
        *((name, Any, None) for name in _TOLERANCE_KEYS),
        ("strategies", dict[str, dict[str, Any]], field(default_factory=dict)),
        *((name, _RULE_FIELDS[name].type, _RULE_FIELDS[name].default) for name in PLAIN_KEYS),
    ],
    frozen=True,
)
"""Keys of ``gate`` in a suite; the tolerances are read separately."""


def parse_gate(raw: Mapping[str, Any], path: KeyPath = ("gate",)) -> tuple[GateRules | None, list[Problem]]:
    """Parse the mapping *raw* at *path*; return the rules, or None and all its mistakes."""
    kinds = {key: raw[key] for key in optional_kinds() if key in raw}
    keys, findings = check_section(
        _Keys, {key: value for key, value in raw.items() if key not in kinds}, path
    )
    columns, wrong = _parse_column_tolerances(
        {kind: v for kind, v in kinds.items() if v not in get_args(VerdictDemand)}, path
    )
    findings += wrong
    base, wrong = _parse_tolerances(
        {k: v for k, v in raw.items() if k in _TOLERANCE_KEYS}, path, Tolerances()
    )
    findings += wrong
    strategies, wrong = _parse_by_glob(raw.get("strategies"), (*path, "strategies"), base)
    findings += wrong
    if keys and keys.min_pairs > keys.max_pairs:
        message = f"must be at most max_pairs = {keys.max_pairs}"
        findings.append(Problem((*path, "min_pairs"), message, keys.min_pairs))
    if findings or keys is None:
        return None, findings
    rest = {name: getattr(keys, name) for name in PLAIN_KEYS}
    required = tuple(kind for kind, value in kinds.items() if value == "required" or kind in columns)
    return GateRules(base, strategies, required=required, columns=columns, **rest), []


def _parse_column_tolerances(raw: Mapping[str, Any], path: KeyPath) -> tuple[dict[str, float], list[Problem]]:
    """Parse the allowed worsening of the columns of kinds of job."""
    columns, findings = {}, []
    for kind, value in raw.items():
        try:
            columns[kind] = parse_fraction("" if isinstance(value, bool) else str(value))
        except ValueError:
            columns[kind] = 0.0
        if not columns[kind]:
            message = (
                f"Allowed: {', '.join(sorted(get_args(VerdictDemand)))}, or a fraction above 0 such as 10%"
            )
            findings.append(Problem((*path, kind), message, value))
    return columns, findings


def optional_kinds() -> list[str]:
    """Kinds of job that have no key of their own."""
    own = {field.name for field in dataclasses.fields(_Keys)}
    return [kind for kind in registry.plugin_names("jobs") if kind not in {*own, MEASURE}]


def _parse_by_glob(raw: Any, path: KeyPath, base: Tolerances) -> tuple[dict[str, Tolerances], list[Problem]]:
    """Parse tolerances by glob, and return their mistakes.

    A value that is not a mapping is reported elsewhere.
    """
    tolerances: dict[str, Tolerances] = {}
    findings = []
    for glob, own in raw.items() if isinstance(raw, Mapping) else ():
        if isinstance(own, Mapping):
            known = {key: value for key, value in own.items() if key in _TOLERANCE_KEYS}
            _, unknown = check_section(
                Tolerances, {key: None for key in own if key not in known}, (*path, glob)
            )
            tolerances[str(glob)], wrong = _parse_tolerances(known, (*path, glob), base)
            findings += [*unknown, *wrong]
    return tolerances, findings


def _parse_tolerances(
    raw: Mapping[str, Any], path: KeyPath, default: Tolerances
) -> tuple[Tolerances, list[Problem]]:
    fractions: dict[str, float | None] = {}
    findings = []
    for key, value in raw.items():
        try:
            fractions[key] = _parse_tolerance(key, value)
        except ValueError as error:
            findings.append(Problem((*path, key), str(error), value))
    return dataclasses.replace(default, **fractions), findings


def _parse_tolerance(key: str, value: Any) -> float | None:
    """Fraction in *value*: ``3%``, ``0.03``, ``{max_drop: 3%}``; None for ``false``.

    Raises:
        ValueError: *value* has a different form.
    """
    if isinstance(value, dict) and len(value) == 1 and not {*value} - {"max_drop", "max_increase"}:
        (value,) = value.values()
    if value is False:
        return None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        fraction = parse_fraction(str(value))
        if not fraction and key in _TIMED_METRICS:
            raise ValueError(
                "must be above 0, such as 3%, because no measurement is exact; or false for no gate"
            )
        return fraction
    raise ValueError("expected a fraction between 0 and 1, such as 3%, 0.03 or {max_drop: 3%}, or false")


def _to_yaml(tolerances: Mapping[str, float | None]) -> dict[str, float | bool]:
    return {key: False if value is None else value for key, value in tolerances.items()}
