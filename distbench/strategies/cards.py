"""Strategy cards: what a strategy shards, sends and stores in theory, and when to use it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distbench.core import registry
from distbench.core.case import PluginChoice

USE_IF = "use it if"
"""Aspect of the claim that says when to use a strategy."""


@dataclass(frozen=True)
class Claim:
    """Theory of a strategy in one aspect."""

    aspect: str
    """``shards``, ``moves``, ``keeps``, ``offload`` or ``USE_IF``."""
    text: str
    source: str = ""
    """URL of the paper or the documentation; empty: it follows from the other claims."""


@dataclass(frozen=True)
class Card:
    """Card of a strategy."""

    shards: str
    """Sharded state in two or three words, for a table."""
    claims: tuple[Claim, ...]


def built_in_card(name: str, *additions: str) -> Card:
    """Card *name* of ``cards.toml``, extended by the *additions* of the same file."""
    cards = _built_in_cards()
    return functools.reduce(_extend, (cards[addition] for addition in additions), cards[name])


def card_for(choice: PluginChoice) -> Card | None:
    """Card of the strategy that a record stores; None: a plug-in of users, or options of another version."""
    strategy = registry.decode_built_in("strategies", choice)
    return strategy.card if strategy else None


@functools.cache
def _built_in_cards() -> Mapping[str, Card]:
    # no command but those that show cards needs it
    import tomllib

    tables = tomllib.loads(Path(__file__).with_name("cards.toml").read_text(encoding="utf-8"))
    urls = tables.pop("sources")
    return {name: _read_card(table, urls) for name, table in tables.items()}


def _read_card(table: Mapping[str, Any], urls: Mapping[str, str]) -> Card:
    sources = {key: urls[name] for key, name in table.get("sources", {}).items()}
    claims = [
        Claim(USE_IF if key == "use_if" else key, " ".join(text.split()), sources.get(key, ""))
        for key, text in table.items()
        if key not in ("summary", "sources")
    ]
    return Card(table.get("summary", ""), tuple(claims))


def _extend(card: Card, addition: Card) -> Card:
    more = {claim.aspect: claim for claim in addition.claims}
    claims = [_join(claim, more.pop(claim.aspect, None)) for claim in card.claims]
    shards = f"{card.shards}, {addition.shards}" if addition.shards else card.shards
    return Card(shards, (*claims, *more.values()))


def _join(claim: Claim, more: Claim | None) -> Claim:
    """*claim* with the text of *more* on the same aspect; conditions of use make one sentence."""
    if more is None:
        return claim
    text = f"{claim.text[:-1]}; {more.text}" if claim.aspect == USE_IF else f"{claim.text} {more.text}"
    return replace(claim, text=text, source=more.source or claim.source)
