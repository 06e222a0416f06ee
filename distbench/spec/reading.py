"""YAML to plain values, with the line of each. Nothing here knows what a suite means."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distbench.errors import Mistake, SuiteError
from distbench.spec.places import KeyPath, Places, key_text

if TYPE_CHECKING:
    from ruamel.yaml import YAML
    from ruamel.yaml.nodes import MappingNode, Node, ScalarNode

MAX_BYTES = 1 << 20
# what a suite unfolds to once its aliases are followed: a small file can hold a huge one
MAX_VALUES = 200_000
MAX_DEPTH = 40

_PREFIX = "tag:yaml.org,2002:"
_SCALARS = ("null", "bool", "int", "float", "str", "timestamp")


def read_text(file: Path) -> str:
    """Return the text of a suite.

    Raises:
        SuiteError: the file is missing, unreadable, too large, or not UTF-8.
    """
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _refused(file, "there is no such file") from None
    except OSError as error:
        raise _refused(file, f"can't be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise _refused(file, f"larger than {MAX_BYTES:,} bytes; this is no suite")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(file, "not UTF-8 text", line) from error


def parse(text: str, source: str) -> tuple[dict[str, Any], Places]:
    """Return a suite's top-level mapping as plain values, and where each value stands.

    Raises:
        SuiteError: no YAML, empty, no mapping, duplicate keys, or it unfolds to too much.
    """
    data, places = _convert(text, source)
    if data is None:
        raise SuiteError([Mistake("the file is empty; a suite needs at least workload, batch, strategies",
                                  file=source)])  # fmt: skip
    if not isinstance(data, dict):
        kind = "a list" if isinstance(data, list) else "one value"
        message = f"a suite is a mapping of keys to values, and this is {kind}"
        raise SuiteError([Mistake(message, file=source, line=1)])
    return data, places


def parse_value(text: str, source: str) -> Any:
    """Return the YAML value that a command-line option gives.

    Raises:
        SuiteError: no YAML.
    """
    return _convert(text, source)[0]


def _refused(file: Path, message: str, line: int | None = None) -> SuiteError:
    return SuiteError([Mistake(message, file=str(file), line=line)])


def _convert(text: str, source: str) -> tuple[Any, Places]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML(typ="safe", pure=True)
    places = Places(source)
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = " ".join(str(error.problem or error.context).split())
        raise SuiteError(
            [Mistake(f"not YAML: {problem}", file=source, line=mark.line + 1 if mark else None)]
        ) from error
    except (YAMLError, ValueError) as error:
        raise SuiteError([Mistake(f"not YAML: {' '.join(str(error).split())}", file=source)]) from error
    except RecursionError as error:
        raise SuiteError([Mistake(f"nested deeper than {MAX_DEPTH} levels", file=source)]) from error
    if node is None:
        return None, places
    converter = _Converter(yaml, places)
    data = converter.value(node, ())
    if converter.mistakes:
        raise SuiteError(converter.mistakes)
    return data, places


class _Converter:
    """Turns composed nodes into plain values, counting what aliases unfold to."""

    def __init__(self, yaml: YAML, places: Places) -> None:
        self.mistakes: list[Mistake] = []
        self._yaml = yaml
        self._places = places
        self._count = 0

    def value(self, node: Node, path: KeyPath) -> Any:
        from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

        self._count += 1
        if self._count > MAX_VALUES:
            raise SuiteError(
                [self._at(node, path[:1], f"unfolds to more than {MAX_VALUES:,} values; too many aliases")]
            )
        if len(path) > MAX_DEPTH:
            raise SuiteError([self._at(node, path[:1], f"nested deeper than {MAX_DEPTH} levels")])
        if isinstance(node, MappingNode):
            return self._mapping(node, path)
        if isinstance(node, SequenceNode):
            return [self._placed(child, (*path, i), child) for i, child in enumerate(node.value)]
        assert isinstance(node, ScalarNode)
        return self._scalar(node, path)

    def _placed(self, node: Node, path: KeyPath, line_of: Node) -> Any:
        self._places.put(path, line_of.start_mark.line + 1)
        return self.value(node, path)

    def _mapping(self, node: MappingNode, path: KeyPath) -> dict[str, Any]:
        found: dict[str, Any] = {}
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
                message = f"given twice, first on line {lines[key]}; keep one"
                self.mistakes.append(self._at(key_node, (*path, key), message))
                continue
            lines[key] = line
            found[key] = self._placed(child, (*path, key), key_node)
        return {**merged, **found}

    def _merge(self, node: Node, path: KeyPath) -> dict[str, Any]:
        # "<<: [*a, *b]": the earlier one rules
        from ruamel.yaml.nodes import SequenceNode

        nodes = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in reversed(nodes):
            value = self.value(part, path)
            if not isinstance(value, dict):
                self.mistakes.append(self._at(part, (*path, "<<"), "a merge needs an alias of a mapping"))
                continue
            merged |= value
        return merged

    def _key(self, node: Node, path: KeyPath) -> str | None:
        if isinstance(node.value, str):
            return str(node.value)
        self.mistakes.append(self._at(node, path, "a key is one word, not a list or a mapping"))
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
            message = "a number must be finite and fit 64 bits"
            self.mistakes.append(self._at(node, path, message, str(node.value)))
            return None
        return value

    def _at(self, node: Node, path: KeyPath, message: str, value: object = None) -> Mistake:
        source, _ = self._places.at(())
        return Mistake(message, key_text(path), value, source, node.start_mark.line + 1)
