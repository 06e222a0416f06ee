"""What a trial is launched for: a kind of job, found among the plug-ins, and the options of its ranks.

What differs between kinds is asked of the kind itself; ``kinds`` lists them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from distbench.core import registry
from distbench.core.errors import UsageError, did_you_mean
from distbench.core.serialization import decoded

if TYPE_CHECKING:
    from distbench.jobs.base import Kind

T = TypeVar("T", bound="Options")

MEASURE = "measure"
"""The kind whose trials are the numbers of a case; a suite always has it."""
REFERENCE = "reference"
"""The role of a trial that others of its kind are compared with."""


@dataclass(frozen=True)
class Options:
    """What the ranks of a trial get besides the case; each kind adds fields with defaults of its own."""

    role: str = ""
    """What the trial is to others of its kind, such as ``case`` or ``reference``."""
    of: str = ""
    """Id of the case that the trial is made for; empty: the case that it trains."""
    reference: str = ""
    """Id of the reference that the case is compared with; of a reference its own."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types, without the fields that are left empty."""
        plain = dataclasses.asdict(self)
        empty = {field.name for field in dataclasses.fields(self) if field.default in ("", None)}
        return {key: value for key, value in plain.items() if key not in empty or value not in ("", None)}


@dataclass(frozen=True)
class Job:
    """What the ranks of a trial do once they have joined."""

    kind: str = MEASURE
    options: Options = field(default_factory=Options)

    @property
    def provides(self) -> str:
        """Id of the reference whose result this job gives; empty: of none."""
        return self.options.reference if self.options.role == REFERENCE else ""

    def options_as(self, kind: type[T]) -> T:
        """The options, which are those of *kind*."""
        assert isinstance(self.options, kind)
        return self.options

    def to_json(self) -> dict[str, Any]:
        """The job as a record and ``trial.json`` keep it."""
        return {"kind": self.kind, "options": self.options.to_json()}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any], source: str) -> Job:
        """The job that ``to_json`` described; of a kind that is not installed only what all kinds share.

        Raises:
            RecordError: the kind is missing, or an option has the wrong type.
        """
        shared = decoded(cls, plain, f"{source}: job")
        options = next((kind.options for kind in kinds() if kind.name == shared.kind), None)
        if options is None:
            return shared
        return cls(shared.kind, decoded(options, plain.get("options", {}), f"{source}: job.options"))


MEASURING = Job()


def kinds() -> tuple[Kind, ...]:
    """Every kind of job, in the order in which a run makes their trials.

    Raises:
        UsageError: a plug-in can't be imported, or two share a word or a folder.
    """
    return _kinds(os.environ.get(registry.PLUGIN_PATH, ""))


def kind_of(word: str) -> Kind:
    """Kind of job that *word* names, as ``job.kind`` of a record does.

    Raises:
        UsageError: there is none, or a plug-in can't be imported.
    """
    known = {kind.name: kind for kind in kinds()}
    if word not in known:
        raise UsageError(f"unknown kind of job {word!r}: {did_you_mean(word, known)}")
    return known[word]


@functools.cache
def _kinds(_plugin_path: str) -> tuple[Kind, ...]:
    made: list[Kind] = [registry.load("jobs", name)() for name in registry.names("jobs")]
    names = [word for kind in made for word in dict.fromkeys((kind.name, kind.folder))]
    for word, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"jobs: two plug-ins are called {word!r} or store their records there")
    return tuple(sorted(made, key=lambda kind: (kind.order, kind.name)))
