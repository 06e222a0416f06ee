"""Suites of tests: their text, their file, and how they are refused."""

from pathlib import Path
from typing import Self, SupportsIndex

import pytest

from distbench.core.errors import SuiteError
from distbench.suite import Overrides, load_suite


class SuiteText(str):
    """A suite, or a part of one, in which tests replace words: those have to be there."""

    __slots__ = ()

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Self:
        assert old in self, f"the suite has no {old!r}"
        return type(self)(super().replace(old, new, count))

    def __add__(self, more: str) -> Self:
        return type(self)(super().__add__(more))


def write_suite(folder: Path, text: str, name: str = "suite.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def refusal(file: Path, *settings: str) -> list[str]:
    """The mistakes of the suite in *file* with *settings*, as if it were called mine.yaml."""
    with pytest.raises(SuiteError) as refused:
        load_suite(file, Overrides(set=settings))
    return [str(mistake).replace(str(file), "mine.yaml") for mistake in refused.value.mistakes]
