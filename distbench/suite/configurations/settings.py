"""A training as a configuration file describes it, with the keys that no suite can express."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from distbench.core.case import NATIVE_ENGINE, PluginChoice

Effect = Literal["training", "memory", "speed"]
"""What leaving a key out may change."""


_LARGEST = 2**53
"""More than any count or rate; also excludes infinity and NaN."""


class SettingError(ValueError):
    """A value that its framework does not take; the message names key, value and what is allowed."""


@dataclass(frozen=True)
class LeftOut:
    """Key that is not carried over."""

    key: str
    """With the names of its sections: ``zero_optimization.sub_group_size``."""
    reason: str
    changes: Effect

    def __str__(self) -> str:
        return f"{self.key}: {self.reason} (may change the {self.changes})"


@dataclass
class DescribedTraining:
    """Sections of a suite that a file decides; what it does not decide is missing in them."""

    strategy: PluginChoice
    batch: dict[str, int] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    precision: dict[str, Any] = field(default_factory=dict)
    activation_checkpointing: str = "none"
    compile: bool = False
    loader: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    """Options of a dataset of the user's own."""
    length: int | None = None
    """Tokens of a sample at most; None: the file does not decide it."""
    world_size: int | None = None
    """None: the file does not decide it."""
    engine: str = NATIVE_ENGINE.name
    """Engine of the framework that the file configures."""
    left_out: list[LeftOut] = field(default_factory=list)


class Settings:
    """A section of a file, whose keys are taken one by one; what is left at the end is not carried over."""

    def __init__(self, values: Mapping[str, Any], left_out: list[LeftOut], path: str = "") -> None:
        self._values, self._left_out, self._path = dict(values), left_out, path
        self._names: dict[str, str] = {}
        """Key -> name in the file, where that is another one."""

    def __contains__(self, key: str) -> bool:
        return key in self._values

    @property
    def keys(self) -> list[str]:
        """Keys that nobody has taken."""
        return [*self._values]

    def merged(self, values: Mapping[str, Any]) -> Settings:
        """The same settings with *values*, which count more."""
        return self._renamed({**self._values, **values}, self._left_out, self._names)

    def is_auto(self, key: str) -> bool:
        """True if the Trainer fills *key* in."""
        return bool(self._values.get(key) == "auto")

    def take(self, key: str, default: Any = None) -> Any:
        """Value of *key*; *default* if it is missing, or ``auto``, by which the Trainer fills it in."""
        value = self._values.pop(key, default)
        if value == "auto":
            self.leave(key, "auto: the arguments of the Trainer decide it", "training")
            return default
        return value

    def take_flag(self, key: str) -> bool:
        """Value of *key*; false if it is missing.

        Raises:
            SettingError: it is neither true nor false.
        """
        value = self.take(key, False)
        if value not in (True, False):
            raise SettingError(f"{self._path}{key} = {value!r}: must be true or false")
        return bool(value)

    def take_number(self, key: str, default: float | None = None) -> float | None:
        """Number of *key*."""
        value = self.take(key, default)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
            return float(value)
        self.leave(key, f"{value!r} is no number", "training")
        return default

    def take_whole(self, key: str, default: int | None = None) -> int | None:
        """Whole number of *key*, which may be written as ``5e8``."""
        value = self.take_number(key, default)
        if value is not None and value != int(value):
            self.leave(key, f"{value:g} is no whole number", "training")
            return default
        return None if value is None else int(value)

    def section(self, key: str) -> Settings:
        """Section *key*; empty if it is missing or no mapping."""
        value = self._values.pop(key, None)
        if value is not None and not isinstance(value, Mapping):
            self.leave(key, f"{value!r} is no mapping", "training")
            value = None
        return Settings(value or {}, self._left_out, f"{self._path}{key}.")

    def without_prefix(self, prefix: str, left_out: list[LeftOut]) -> Settings:
        """The same settings, whose keys may begin with *prefix*; *left_out* gets what is not carried over."""
        names = {key.removeprefix(prefix): key for key in self._values}
        values = {key: self._values[name] for key, name in names.items()}
        return self._renamed(values, left_out, names)

    def leave(self, key: str, reason: str, changes: Effect) -> None:
        """Leave *key* out for *reason*."""
        self._values.pop(key, None)
        self._left_out.append(LeftOut(self._path + self._names.get(key, key), reason, changes))

    def _renamed(self, values: Mapping[str, Any], left_out: list[LeftOut], names: dict[str, str]) -> Settings:
        settings = Settings(values, left_out, self._path)
        settings._names = names
        return settings

    def leave_unless(self, key: str, usual: Any, reason: str, changes: Effect) -> None:
        """Take *key*; leave it out for *reason* if it is there and not *usual*."""
        if key in self and self.take(key, usual) != usual:
            self.leave(key, reason, changes)

    def ignore(self, keys: Iterable[str]) -> None:
        """Drop *keys*, which neither train, keep nor move anything."""
        for key in keys:
            self._values.pop(key, None)

    def leave_rest(self) -> None:
        """Leave out all keys that nobody has taken."""
        for key in self.keys:
            self.leave(key, "a suite has no such setting", "training")
