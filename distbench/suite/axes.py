"""Fields of a suite with several values: lists in place, ``axes``, ``include``, ``exclude``."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.core.case import MOST_RANKS, Choice
from distbench.core.errors import did_you_mean
from distbench.core.suite_mistakes import KeyPath, SuiteMistake
from distbench.suite.cells import Axis, Origins, Part, in_order, located, select
from distbench.suite.plugin_options import axes_of, named, spread
from distbench.suite.sections import is_axis
from distbench.suite.work import PLUGIN_ROOTS, ROOTS, SCALAR_ROOTS, SECTION_ROOTS, Raw, WorkChecker, normal


class AxisReader:
    """Reads them and collects mistakes in *findings*."""

    def __init__(self, top: Any, checker: WorkChecker, findings: list[SuiteMistake]) -> None:
        self._top = top
        self._checker = checker
        self.findings = findings

    def work(self) -> tuple[Raw, tuple[Axis, ...]]:
        """The work in normal form, and its fields with several values."""
        work: Raw = {}
        axes: list[Axis] = []
        for root in ROOTS:
            raw = getattr(self._top, root)
            if raw is None:
                continue
            if isinstance(raw, list):
                axes += self._axis((root,), raw, (root,))
                continue
            work[root], listed = self._without_lists(root, normal(root, raw))
            axes += listed
        for key, values in self._top.axes.items():
            axes += self._explicit(key, values, work, axes)
        for axis in axes:
            if len(axis.path) == 1:
                work.pop(axis.path[0], None)
        self._check_values(work, axes)
        return work, tuple(axes)

    def parts(self, key: str, work: Raw, axes: tuple[Axis, ...]) -> tuple[Part, ...]:
        """The cells to add or to leave out: those of ``include`` or ``exclude``."""
        parts = []
        for i, raw in enumerate(getattr(self._top, key)):
            origin: KeyPath = (key, i)
            strategy, world_sizes, rest = self._which(raw, origin)
            own: list[Axis] = []
            for name, value in rest.items():
                if path := self._path(name, (*origin, name), work, value):
                    is_list = self._varies(path, value)
                    own += self._axis(path, value if is_list else [value], (*origin, name), is_list)
            # an include makes cases of its values, an exclude may hold some that don't go together
            for checked in [own] if key == "include" else [[axis] for axis in own]:
                self._check_extra(work, axes, checked)
            parts.append(Part(origin, strategy, world_sizes, tuple(map(_in_normal_form, own))))
        return tuple(parts)

    def _which(self, raw: Raw, origin: KeyPath) -> tuple[str, tuple[int, ...] | None, Raw]:
        """Strategy glob, world sizes and the other keys of an include or exclude."""
        rest = dict(raw)
        strategy = rest.pop("strategy", "*")
        if not isinstance(strategy, str):
            self.findings.append(
                SuiteMistake((*origin, "strategy"), "expected a glob on labels, such as zero*", strategy)
            )
            strategy = "*"
        size = rest.pop("world_size", None)
        if size is None:
            return strategy, None, rest
        listed = size if isinstance(size, list) else [size]
        return strategy, sizes(listed, (*origin, "world_size"), self.findings), rest

    def _without_lists(self, root: str, raw: Any) -> tuple[Any, list[Axis]]:
        """*raw* without the fields that list several values, and those fields as axes."""
        inner = raw
        prefix: tuple[str, ...] = (root,)
        if root in PLUGIN_ROOTS:
            plugin = named(raw, (root,))
            if isinstance(plugin, SuiteMistake):
                return raw, []
            inner, prefix = plugin.options, (root, plugin.name)
        if not isinstance(inner, dict):
            return raw, []
        axes: list[Axis] = []
        for key, value in list(inner.items()):
            if self._varies((*prefix, key), value):
                axes += self._axis((*prefix, key), value, (*prefix, key))
        kept = {key: value for key, value in inner.items() if (*prefix, key) not in {a.path for a in axes}}
        return ({prefix[1]: kept} if root in PLUGIN_ROOTS else kept), axes

    def _varies(self, path: tuple[str, ...], value: Any) -> bool:
        """Whether *value* lists several values of the field at *path*."""
        root = path[0]
        if len(path) == 1 or not isinstance(value, list):
            return isinstance(value, list)
        if root in SECTION_ROOTS:
            return is_axis(SECTION_ROOTS[root], path[1], value)
        return len(path) == 3 and (path[2],) in axes_of(Choice(path[1], {path[2]: value}), PLUGIN_ROOTS[root])

    def _axis(self, path: tuple[str, ...], values: Any, origin: KeyPath, placed: bool = True) -> list[Axis]:
        """The axis of *values*, each of which has its own place below *origin* if *placed*."""
        if not isinstance(values, list) or not values:
            self.findings.append(
                SuiteMistake(origin, "expected a list of at least one value", values or None)
            )
            return []
        pairs: list[tuple[Any, KeyPath]] = []
        for i, value in enumerate(values):
            place = (*origin, i) if placed else origin
            pairs += [(variant, place) for variant in _spread_root(path, value)]
        return [Axis(path, tuple(value for value, _ in pairs), tuple(place for _, place in pairs))]

    def _explicit(self, key: str, values: Any, work: Raw, axes: list[Axis]) -> list[Axis]:
        origin = ("axes", key)
        path = self._path(key, origin, work, values)
        if path is None:
            return []
        if path in {axis.path for axis in axes}:
            self.findings.append(
                SuiteMistake(origin, f"{key} already lists several values; keep one of the two", values)
            )
            return []
        return self._axis(path, values, origin)

    def _path(self, key: str, origin: KeyPath, work: Raw, value: Any) -> tuple[str, ...] | None:
        """Path in the work that *key* names, or None with a finding."""
        path = tuple(key.split("."))
        problem = _path_problem(path, work)
        if problem is None:
            return path
        self.findings.append(SuiteMistake(origin, problem, value))
        return None

    def _check_values(self, work: Raw, axes: list[Axis]) -> None:
        """Check each value of each axis, with the first value of the others."""
        for chosen, origins in _one_by_one(work, axes):
            _, findings = self._checker.check(chosen)
            varied = {axis.path for axis in axes}
            # whether values can be combined is known when all are chosen: in the plan
            self.findings += [
                located(finding, origins) for finding in findings if not _may_fit(finding, varied)
            ]

    def _check_extra(self, work: Raw, axes: Sequence[Axis], extra: list[Axis]) -> None:
        """Check each value in an include or exclude; the rest has been checked."""
        ordered = in_order(axes)
        base, _ = select(work, ordered, [0] * len(ordered))
        for chosen, origins in _one_by_one(base, extra):
            _, findings = self._checker.check(chosen)
            placed = [(finding, located(finding, origins)) for finding in findings if not finding.combined]
            self.findings += [there for finding, there in placed if there is not finding]


def _one_by_one(work: Raw, axes: Sequence[Axis]) -> Iterator[tuple[Raw, Origins]]:
    """Yield *work* with each value of each axis, the first value of the others."""
    ordered = in_order(axes)
    for number, axis in enumerate(ordered):
        for index in range(len(axis.values)):
            yield select(work, ordered, [index if i == number else 0 for i in range(len(ordered))])
    if not ordered:
        yield select(work, [], [])


def _may_fit(finding: SuiteMistake, varied: Collection[tuple[str, ...]]) -> bool:
    """Whether values that can't be combined might be with other values of an axis."""
    root = str(finding.path[0])
    fields = {(root, field) for field in finding.combined}
    return bool(fields) and not fields.union([(root,)]).isdisjoint(varied)


def sizes(raw: Any, path: KeyPath, findings: list[SuiteMistake]) -> tuple[int, ...]:
    """World sizes in *raw*; mistakes are added to *findings*."""
    if not isinstance(raw, list):
        message = "expected a list of whole numbers, such as [1, 2]"
        message += ", or auto" if path == ("world_sizes",) else ""
        findings.append(SuiteMistake(path, message, raw))
        return ()
    valid: list[int] = []
    for i, given in enumerate(raw):
        size = int(given) if isinstance(given, float) and given.is_integer() else given
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MOST_RANKS:
            findings.append(SuiteMistake((*path, i), "expected a whole number, 1 or more", given))
        elif size in valid:
            findings.append(SuiteMistake((*path, i), "duplicate", given))
        else:
            valid.append(size)
    if not raw:
        findings.append(SuiteMistake(path, "empty; list at least one world size"))
    return tuple(valid)


def _in_normal_form(axis: Axis) -> Axis:
    if len(axis.path) > 1:
        return axis
    return replace(axis, values=tuple(normal(axis.path[0], value) for value in axis.values))


def _spread_root(path: tuple[str, ...], value: Any) -> list[Any]:
    """Variants of one value of an axis: a plug-in's options may list several values."""
    if len(path) > 1 or path[0] not in PLUGIN_ROOTS:
        return [value]
    plugin = named(value, path)
    if isinstance(plugin, SuiteMistake):
        return [value]
    return [variant.to_raw() for variant, _ in spread(plugin, PLUGIN_ROOTS[path[0]])]


def _path_problem(path: tuple[str, ...], work: Raw) -> str | None:
    root, *rest = path
    if root == "strategies":
        return "list the values at the strategy itself: strategies: [{name: {option: [1, 2]}}]"
    if root not in ROOTS:
        return f"not a field of a case; {did_you_mean(root, ROOTS)}"
    if not rest:
        return None
    if root in SCALAR_ROOTS or (root in SECTION_ROOTS and len(rest) > 1):
        return f"{'.'.join(path[: 1 if root in SCALAR_ROOTS else 2])} has no keys below"
    if root in PLUGIN_ROOTS and isinstance(work.get(root), dict) and rest[0] not in work[root]:
        return f"not the suite's {root}; {did_you_mean(rest[0], work[root])}"
    return None
