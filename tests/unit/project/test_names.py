"""Rules for names and for first lines of docstrings, as data (docs/glossary.md, CONTRIBUTING.md)."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "distbench"
# a participle or a gerund says what happened to a thing, not what it is; these are nouns of the field
NOUN_CLASSES = {"Embedding"}
NOUN_MODULES = {"deepspeed_removed", "grouping", "hashing", "ring", "scaling", "case_matching", "wording"}
NOUN_MODULES |= {"layer_sharding"}
# participles that stand for any value; a field of a record's JSON keeps the one it has
RIDDLE_NAMES = {"told", "said", "apart", "meant"}
FIELDS = {("gate/verdicts.py", "said")}
RIDDLES = re.compile(r"(What|How|Whether|Why|Where|When|Which|That)\b")


@cache
def trees() -> dict[str, ast.Module]:
    found = {str(file.relative_to(PACKAGE)): ast.parse(file.read_text()) for file in PACKAGE.rglob("*.py")}
    assert len(found) > 400, "the package was not found"
    return found


def classes() -> Iterator[tuple[str, str]]:
    """File and name of each public class."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield file, node.name


def first_lines() -> Iterator[tuple[str, str, str]]:
    """File, name and first line of each docstring."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (ast.get_docstring(node) or "").splitlines()
                if lines:
                    yield file, getattr(node, "name", "module"), lines[0]


def test_a_public_class_name_has_one_meaning():
    where = defaultdict(list)
    for file, name in classes():
        where[name].append(file)
    assert len(where) > 300
    assert {name: files for name, files in where.items() if len(files) > 1} == {}


def test_a_class_is_named_by_what_it_is():
    participles = {name for _, name in classes() if re.fullmatch(r"[A-Z][a-z]+(ed|ing)", name)}
    assert participles - NOUN_CLASSES == set()


def test_a_module_is_named_by_a_noun():
    modules = {Path(file).stem for file in trees()}
    gerunds = {name for name in modules if re.search(r"(ed|ing)$", name) and not name.startswith("_")}
    assert gerunds - NOUN_MODULES == set()


def test_the_first_line_of_a_docstring_says_what_a_thing_is_or_does():
    lines = [*first_lines()]
    assert len(lines) > 3000
    assert [(file, name, line) for file, name, line in lines if RIDDLES.match(line)] == []


def test_a_variable_is_named_by_what_it_is():
    names = [
        (file, getattr(node, "id", None) or getattr(node, "arg", ""))
        for file, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]
    assert len(names) > 10_000
    assert {(file, name) for file, name in names if name in RIDDLE_NAMES} == FIELDS
