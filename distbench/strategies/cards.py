"""Find strategies and their cards by the choice that a record stores, without a trial."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.strategies.description import Card

if TYPE_CHECKING:
    from distbench.strategies.base import Strategy


def strategy_of(choice: PluginChoice) -> Strategy | None:
    """Built-in strategy with these options; None: a plug-in of users, or options of another version."""
    cls = registry.built_in_plugins("strategies").get(choice.name)
    if cls is None or choice.options.keys() - {field.name for field in dataclasses.fields(cls)}:
        return None
    try:
        made: Strategy = decode(cls, choice.options, choice.name)
    except (RecordError, TypeError, ValueError, LookupError):
        # records are untrusted: options may be unknown, of the wrong type, or incompatible
        return None
    return made


def card_for(choice: PluginChoice) -> Card | None:
    """Card of ``strategy_of``."""
    return strategy.card if (strategy := strategy_of(choice)) else None
