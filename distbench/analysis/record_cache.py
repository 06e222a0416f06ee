"""Results that views derive from the tables of a record: derived once, as long as the record lives."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TypeVar

from distbench.record import Record

T = TypeVar("T")


def cached_by_record(derive: Callable[[Record], T]) -> Callable[[Record], T]:
    """Decorate *derive*, whose result nobody changes: it is called once for each record."""
    # by identity: a record has no hash, and comparing two of them would read all of their files
    results: dict[int, T] = {}

    @functools.wraps(derive)
    def cached(record: Record) -> T:
        key = id(record)
        if key not in results:
            results[key] = derive(record)
            weakref.finalize(record, results.pop, key).atexit = False
        return results[key]

    return cached
