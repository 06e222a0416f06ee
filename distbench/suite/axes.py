"""Fields of a suite with several values: lists in place, ``axes``, ``include``, ``exclude``."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from distbench.core.case import MAX_WORLD_SIZE, PluginChoice
from distbench.core.errors import did_you_mean
from distbench.core.suite_mistakes import KeyPath, Problem
from distbench.suite.cells import (
    CaseFilter,
    SuiteAxis,
    ValueOrigins,
    move_to_origin,
    outer_first,
    select_values,
)
from distbench.suite.plugin_options import expand_options, listed_options, parse_choice
from distbench.suite.sections import lists_values
from distbench.suite.variables import ENV_KEY, variable_text
from distbench.suite.work import (
    PLUGIN_KEYS,
    SCALAR_KEYS,
    SECTION_KEYS,
    WORK_KEYS,
    RawMapping,
    WorkChecker,
    expand_shorthand,
)


class AxisParser:
    """Parses axes, include and exclude, and collects mistakes."""

    def __init__(self, top: Any, checker: WorkChecker, problems: list[Problem]) -> None:
        self._top = top
        self._checker = checker
        self.problems = problems

    def parse_work(self) -> tuple[RawMapping, tuple[SuiteAxis, ...]]:
        """The work in normal form, and its fields with several values."""
        work: RawMapping = {}
        axes: list[SuiteAxis] = []
        for root in WORK_KEYS:
            raw = getattr(self._top, root)
            if raw is None:
                continue
            if isinstance(raw, list):
                axes += self._make_axis((root,), raw, (root,))
                continue
            work[root], listed = self._extract_lists(root, expand_shorthand(root, raw))
            axes += listed
        for key, values in self._top.axes.items():
            axes += self._parse_axis(key, values, work, axes)
        for axis in axes:
            if len(axis.path) == 1:
                work.pop(axis.path[0], None)
        self._check_axis_values(work, axes)
        return work, tuple(axes)

    def parse_case_filters(
        self, key: str, work: RawMapping, axes: tuple[SuiteAxis, ...]
    ) -> tuple[CaseFilter, ...]:
        """Parse the case filters of ``include`` or ``exclude``."""
        parts = []
        for i, raw in enumerate(getattr(self._top, key)):
            origin: KeyPath = (key, i)
            strategy, world_sizes, rest = self._strategy_and_sizes(raw, origin)
            own: list[SuiteAxis] = []
            for name, value in rest.items():
                if path := self._parse_path(name, (*origin, name), work, value):
                    is_list = self._is_list_of_values(path, value)
                    own += self._make_axis(path, value if is_list else [value], (*origin, name), is_list)
            # an include makes cases of its values, an exclude may hold some that don't go together
            for checked in [own] if key == "include" else [[axis] for axis in own]:
                self._check_filter_values(work, axes, checked)
            parts.append(CaseFilter(origin, strategy, world_sizes, tuple(map(_normalize_axis, own))))
        return tuple(parts)

    def _strategy_and_sizes(
        self, raw: RawMapping, origin: KeyPath
    ) -> tuple[str, tuple[int, ...] | None, RawMapping]:
        """Strategy glob, world sizes and the other keys of an include or exclude."""
        rest = dict(raw)
        strategy = rest.pop("strategy", "*")
        if not isinstance(strategy, str):
            self.problems.append(
                Problem((*origin, "strategy"), "expected a glob on labels, such as zero*", strategy)
            )
            strategy = "*"
        size = rest.pop("world_size", None)
        if size is None:
            return strategy, None, rest
        listed = size if isinstance(size, list) else [size]
        return strategy, parse_world_sizes(listed, (*origin, "world_size"), self.problems), rest

    def _extract_lists(self, root: str, raw: Any) -> tuple[Any, list[SuiteAxis]]:
        """Split *raw* into fields with a single value, and axes of those that list several."""
        inner = raw
        prefix: tuple[str, ...] = (root,)
        if root in PLUGIN_KEYS:
            plugin = parse_choice(raw, (root,))
            if isinstance(plugin, Problem):
                return raw, []
            inner, prefix = plugin.options, (root, plugin.name)
        if not isinstance(inner, dict):
            return raw, []
        axes: list[SuiteAxis] = []
        for key, value in list(inner.items()):
            if self._is_list_of_values((*prefix, key), value):
                axes += self._make_axis((*prefix, key), value, (*prefix, key))
        kept = {key: value for key, value in inner.items() if (*prefix, key) not in {a.path for a in axes}}
        return ({prefix[1]: kept} if root in PLUGIN_KEYS else kept), axes

    def _is_list_of_values(self, path: tuple[str, ...], value: Any) -> bool:
        """True if *value* lists several values of the field at *path*."""
        root = path[0]
        if len(path) == 1 or root == ENV_KEY or not isinstance(value, list):
            return isinstance(value, list)
        if root in SECTION_KEYS:
            return lists_values(SECTION_KEYS[root], path[1], value)
        return len(path) == 3 and (path[2],) in listed_options(
            PluginChoice(path[1], {path[2]: value}), PLUGIN_KEYS[root]
        )

    def _make_axis(
        self, path: tuple[str, ...], values: Any, origin: KeyPath, placed: bool = True
    ) -> list[SuiteAxis]:
        """Make the axis of *values*, each of which has its own place below *origin* if *placed*."""
        if not isinstance(values, list) or not values:
            self.problems.append(Problem(origin, "expected a list of at least one value", values or None))
            return []
        pairs: list[tuple[Any, KeyPath]] = []
        for i, value in enumerate(values):
            place = (*origin, i) if placed else origin
            pairs += [(variant, place) for variant in _expand_value(path, value)]
        return [SuiteAxis(path, tuple(value for value, _ in pairs), tuple(place for _, place in pairs))]

    def _parse_axis(self, key: str, values: Any, work: RawMapping, axes: list[SuiteAxis]) -> list[SuiteAxis]:
        origin = ("axes", key)
        path = self._parse_path(key, origin, work, values)
        if path is None:
            return []
        if path in {axis.path for axis in axes}:
            self.problems.append(
                Problem(origin, f"{key} also has a list of values; keep only one of the two", values)
            )
            return []
        return self._make_axis(path, values, origin)

    def _parse_path(self, key: str, origin: KeyPath, work: RawMapping, value: Any) -> tuple[str, ...] | None:
        """Path in the work that *key* names; None with a finding if there is none."""
        path = tuple(key.split("."))
        problem = _path_problem(path, work)
        if problem is None:
            return path
        self.problems.append(Problem(origin, problem, value))
        return None

    def _check_axis_values(self, work: RawMapping, axes: list[SuiteAxis]) -> None:
        """Check each value of each axis, with the first value of the others."""
        for chosen, origins in _vary_one_axis(work, axes):
            _, findings = self._checker.check(chosen)
            varied = {axis.path for axis in axes}
            # only the plan, with all values chosen, shows which of them can be combined
            self.problems += [
                move_to_origin(finding, origins)
                for finding in findings
                if not _depends_on_axes(finding, varied)
            ]

    def _check_filter_values(
        self, work: RawMapping, axes: Sequence[SuiteAxis], extra: list[SuiteAxis]
    ) -> None:
        """Check each value in an include or exclude; the rest has been checked."""
        ordered = outer_first(axes)
        base, _ = select_values(work, ordered, [0] * len(ordered))
        for chosen, origins in _vary_one_axis(base, extra):
            _, findings = self._checker.check(chosen)
            placed = [
                (finding, move_to_origin(finding, origins))
                for finding in findings
                if not finding.combined_fields
            ]
            self.problems += [there for finding, there in placed if there is not finding]


def _vary_one_axis(work: RawMapping, axes: Sequence[SuiteAxis]) -> Iterator[tuple[RawMapping, ValueOrigins]]:
    """Yield *work* with each value of each axis, the first value of the others."""
    ordered = outer_first(axes)
    for number, axis in enumerate(ordered):
        for index in range(len(axis.values)):
            yield select_values(work, ordered, [index if i == number else 0 for i in range(len(ordered))])
    if not ordered:
        yield select_values(work, [], [])


def _depends_on_axes(problem: Problem, varied: Collection[tuple[str, ...]]) -> bool:
    """True if an invalid combination depends on fields that an axis varies."""
    root = str(problem.path[0])
    fields = {(root, field) for field in problem.combined_fields}
    return bool(fields) and not fields.union([(root,)]).isdisjoint(varied)


def parse_world_sizes(raw: Any, path: KeyPath, problems: list[Problem]) -> tuple[int, ...]:
    """World sizes in *raw*; mistakes are added to *problems*."""
    if not isinstance(raw, list):
        message = "expected a list of whole numbers, such as [1, 2]"
        message += ", or auto" if path == ("world_sizes",) else ""
        problems.append(Problem(path, message, raw))
        return ()
    valid: list[int] = []
    for i, given in enumerate(raw):
        size = int(given) if isinstance(given, float) and given.is_integer() else given
        if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_WORLD_SIZE:
            problems.append(Problem((*path, i), "expected a whole number, 1 or more", given))
        elif size in valid:
            problems.append(Problem((*path, i), "duplicate", given))
        else:
            valid.append(size)
    if not raw:
        problems.append(Problem(path, "empty; list at least one world size"))
    return tuple(valid)


def _normalize_axis(axis: SuiteAxis) -> SuiteAxis:
    if len(axis.path) > 1:
        return axis
    return replace(axis, values=tuple(expand_shorthand(axis.path[0], value) for value in axis.values))


def _expand_value(path: tuple[str, ...], value: Any) -> list[Any]:
    """Variants of one value of an axis: a plug-in's options may list several values."""
    if path[0] == ENV_KEY and len(path) > 1:
        return [variable_text(value)]
    if len(path) > 1 or path[0] not in PLUGIN_KEYS:
        return [value]
    plugin = parse_choice(value, path)
    if isinstance(plugin, Problem):
        return [value]
    return [variant.to_yaml() for variant, _ in expand_options(plugin, PLUGIN_KEYS[path[0]])]


def _path_problem(path: tuple[str, ...], work: RawMapping) -> str | None:
    root, *rest = path
    if root == "strategies":
        return "set the values in the strategy: strategies: [{name: {option: [1, 2]}}]"
    if root not in WORK_KEYS:
        return f"not a field of a case; {did_you_mean(root, WORK_KEYS)}"
    if not rest:
        return None
    if root in SCALAR_KEYS or (root in (*SECTION_KEYS, ENV_KEY) and len(rest) > 1):
        return f"{'.'.join(path[: 1 if root in SCALAR_KEYS else 2])} has no sub-keys"
    if root in PLUGIN_KEYS and isinstance(work.get(root), dict) and rest[0] not in work[root]:
        return f"not the suite's {root}; {did_you_mean(rest[0], work[root])}"
    return None
