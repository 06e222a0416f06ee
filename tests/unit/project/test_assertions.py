"""No test passes because a list was empty: each asserts something outside of loops."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
# their fixtures assert that the cases are there
GUARDED = ("gpu",)


def assertions(node: ast.AST, in_loop: bool = False) -> Iterator[bool]:
    """Yield for each assertion below *node* whether it is made even if everything iterated over is empty."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assert):
            yield not in_loop and not is_universal(child.test)
        elif isinstance(child, ast.Call) and is_assertion(child):
            yield not in_loop
        yield from assertions(child, in_loop or (isinstance(child, ast.For) and not is_constant(child.iter)))


def is_universal(test: ast.expr) -> bool:
    """True for ``all(...)`` and ``not any(...)``, which hold of nothing."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return is_call_of(test.operand, "any")
    return is_call_of(test, "all")


def is_assertion(call: ast.Call) -> bool:
    """True for ``pytest.raises`` and ``pytest.fail``, and for helpers that assert."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in ("raises", "fail") or name.startswith("assert_")


def is_call_of(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def is_constant(iterated: ast.expr) -> bool:
    """True if *iterated* is a display, a range, or made of a constant of the module."""
    match iterated:
        case ast.Tuple() | ast.List() | ast.Set() | ast.Dict():
            return True
        case ast.Name(id=name):
            return name.isupper()
        case ast.BinOp(left=part) | ast.Call(func=ast.Attribute(value=part)):
            return is_constant(part)
    return is_call_of(iterated, "range")


def vacuous(source: str) -> list[str]:
    """Names of the tests in *source* that assert, but only of what they iterate over."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    made = {node.name: [*assertions(node)] for node in functions if node.name.startswith("test_")}
    return [name for name, outside in made.items() if outside and not any(outside)]


def test_a_test_asserts_something_outside_of_loops():
    files = [file for file in TESTS.rglob("test_*.py") if file.relative_to(TESTS).parts[0] not in GUARDED]
    assert len(files) > 200
    found = {str(file.relative_to(TESTS)): vacuous(file.read_text()) for file in files}
    assert {file: names for file, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        ("for each in made():\n  assert each", True),
        ("assert all(made())", True),
        ("assert not any(made())", True),
        ("for each in made():\n  with pytest.raises(ValueError):\n   each()", True),
        ("while made():\n  pass", False),
        ("found = made()\n assert found\n for each in found:\n  assert each", False),
        ("for each in (1, 2):\n  assert made(each)", False),
        ("for each in NAMES.items():\n  assert made(each)", False),
        ("with pytest.raises(ValueError):\n  made()", False),
    ],
)
def test_what_asserts_nothing_of_nothing_is_found(body, is_found):
    assert bool(vacuous(f"def test_it():\n {body}\n")) == is_found
