"""Parse YAML into plain values and remember the line of each.

The source of each value is kept, so that a mistake found late still names file and line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.core.errors import SuiteError, SuiteMistake
from distbench.core.suite_mistakes import KeyPath
from distbench.suite.foreign_files import foreign_file_problem
from distbench.system.files import read_bounded

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode


def key_text(path: Sequence[str | int]) -> str:
    """A path as users write it: ``strategies[2].zero.stage``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


class SourceMap:
    """Maps the values of a suite to their file and line, or command-line option."""

    def __init__(self, source: str, *, has_lines: bool = True) -> None:
        """Create a map for *source*, a file or, without lines, an option."""
        self._source, self._has_lines = source, has_lines
        self._known: dict[KeyPath, tuple[str, int | None]] = {}

    def add(self, path: KeyPath, line: int) -> None:
        """Record that the value at *path* is on *line* of the file."""
        self._known[path] = (self._source, line if self._has_lines else None)

    def override(self, path: KeyPath, option: str) -> None:
        """Record that the command-line *option* set the value at *path* and everything below it."""
        self.forget(path)
        self._known[path] = (option, None)

    def forget(self, path: KeyPath) -> None:
        """Forget the value at *path* and everything below it."""
        for known in [known for known in self._known if known[: len(path)] == path]:
            del self._known[known]

    def locate(self, path: KeyPath) -> tuple[str, int | None]:
        """Source and line of *path*, or of the closest value that contains it."""
        for length in range(len(path), 0, -1):
            if path[:length] in self._known:
                return self._known[path[:length]]
        return self._source, None

    def mistake(self, path: KeyPath, message: str, value: object = None) -> SuiteMistake:
        """Make the mistake that *message* describes, with its place in the suite."""
        source, line = self.locate(path)
        return SuiteMistake(message, key_text(path), value, source, line)

    def mistake_on(self, line: int | None, path: KeyPath, message: str, value: object = None) -> SuiteMistake:
        """Make the mistake that *message* describes, on *line* of the source being read."""
        return SuiteMistake(message, key_text(path), value, self._source, line if self._has_lines else None)


MAX_BYTES = 1 << 20
# limit after aliases are expanded: a small file can expand to a huge suite
MAX_EXPANDED_VALUES = 200_000
MAX_SUITE_DEPTH = 40

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")


def read_suite_text(file: Path) -> str:
    """Text of a suite.

    Raises:
        SuiteError: the file is missing, not a regular one, unreadable, too large, or not UTF-8.
    """
    try:
        data = read_bounded(file, MAX_BYTES, follow=True)
    except FileNotFoundError:
        raise _error(file, "no such file") from None
    except OSError as error:
        raise _error(file, f"can't be read: {error.strerror}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _error(file, "not UTF-8 text", line) from error


def parse_suite(
    text: str, source: str, needs: str = "a suite needs at least workload, batch, strategies"
) -> tuple[dict[str, Any], SourceMap]:
    """Parse the top-level mapping of a suite to plain values, and the place of each.

    *needs* says what such a file must have.

    Raises:
        SuiteError: a file of another tool, not YAML, empty, not a mapping, duplicate keys, or too large when
            aliases are expanded.
    """
    if problem := foreign_file_problem(text):
        raise _error(source, problem)
    places = SourceMap(source)
    data = _load_yaml(text, places, ())
    if data is None:
        raise _error(source, f"the file is empty; {needs}")
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "a single value"
        raise _error(source, f"expected a mapping (key: value) at the top level, found {kind}", 1)
    return data, places


def parse_value(text: str, option: str, path: KeyPath) -> Any:
    """Parse the YAML value that the command-line *option* sets at *path*.

    Raises:
        SuiteError: not YAML.
    """
    return _load_yaml(text, SourceMap(option, has_lines=False), path)


def _error(source: str | Path, message: str, line: int | None = None) -> SuiteError:
    return SuiteError([SuiteMistake(message, file=str(source), line=line)])


def _load_yaml(text: str, places: SourceMap, path: KeyPath) -> Any:
    """Convert the YAML *text* at *path* to plain values, and record the source of each in *places*."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        line = mark.line + 1 if mark else None
        raise SuiteError([places.mistake_on(line, path, f"not YAML: {problem}")]) from error
    except (YAMLError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise SuiteError([places.mistake_on(None, path, f"not YAML: {problem}")]) from error
    except RecursionError as error:
        problem = f"nested deeper than {MAX_SUITE_DEPTH} levels"
        raise SuiteError([places.mistake_on(None, path, problem)]) from error
    if node is None:
        return None
    converter = _NodeConverter(yaml, places)
    data = converter.value(node, path)
    if converter.mistakes:
        raise SuiteError(converter.mistakes)
    return data


class _NodeConverter:
    """Converts composed nodes to plain values, counting them as aliases expand."""

    def __init__(self, yaml: YAML, places: SourceMap) -> None:
        self.mistakes: list[SuiteMistake] = []
        self._yaml = yaml
        self._places = places
        self._count = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        self._count += 1
        if self._count > MAX_EXPANDED_VALUES:
            message = f"expands to more than {MAX_EXPANDED_VALUES:,} values; too many aliases"
            raise SuiteError([self._at(node, path[:1], message)])
        if len(path) > MAX_SUITE_DEPTH:
            raise SuiteError([self._at(node, path[:1], f"nested deeper than {MAX_SUITE_DEPTH} levels")])
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._convert_at(child, (*path, i), child) for i, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, path)

    def _convert_at(self, node: Node, path: KeyPath, line_of: Node) -> Any:
        self._places.add(path, line_of.start_mark.line + 1)
        return self.value(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        lines: dict[str, int] = {}
        merged: dict[str, Any] = {}
        for key_node, child in node.value:
            if key_node.tag == f"{_PREFIX}merge":
                merged |= self._merge(child, path)
                continue
            key = self._key(key_node, path)
            if key is None:
                continue
            line = key_node.start_mark.line + 1
            if key in lines:
                first = f" (first on line {lines[key]})" if line != lines[key] else ""
                message = f"duplicate key{first}; keep one"
                self.mistakes.append(self._at(key_node, (*path, key), message))
                continue
            lines[key] = line
            values[key] = self._convert_at(child, (*path, key), key_node)
        return {**merged, **values}

    def _merge(self, node: Node, path: KeyPath) -> dict[str, Any]:
        # "<<: [*a, *b]": the earlier one wins
        from ruamel.yaml.nodes import SequenceNode

        nodes = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in reversed(nodes):
            value = self.value(part, path)
            if not isinstance(value, dict):
                self.mistakes.append(self._at(part, (*path, "<<"), "expected an alias of a mapping"))
                continue
            merged |= value
        return merged

    def _key(self, node: Node, path: KeyPath) -> str | None:
        if isinstance(node.value, str):
            return str(node.value)
        self.mistakes.append(self._at(node, path, "a key must be a single word, not a list or a mapping"))
        return None

    def _scalar(self, node: ScalarNode, path: KeyPath) -> Any:
        kind = str(node.tag).removeprefix(_PREFIX)
        if kind not in _SCALARS:
            self.mistakes.append(self._at(node, path, f"the YAML tag {node.tag} is not allowed"))
            return None
        if kind in ("str", "timestamp"):
            return str(node.value)
        try:
            value = self._yaml.constructor.construct_object(node)
        except ValueError:
            value = math.inf
        if isinstance(value, (int, float)) and not abs(value) < 2**63:
            message = "a number must be finite and fit into 64 bits"
            self.mistakes.append(self._at(node, path, message, str(node.value)))
            return None
        return value

    def _at(self, node: Node, path: KeyPath, message: str, value: object = None) -> SuiteMistake:
        return self._places.mistake_on(node.start_mark.line + 1, path, message, value)
