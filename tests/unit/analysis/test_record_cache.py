"""Results by record: derived once, and gone with the record."""

import weakref

from distbench.analysis.record_cache import cached_by_record
from distbench.record import Record
from support.records import case, measured


class Result:
    """Something that a record is read for."""


def test_a_result_is_derived_once_for_each_record():
    derived: list[Record] = []

    @cached_by_record
    def place(record: Record) -> int:
        derived.append(record)
        return len(derived)

    # equal, and yet two records
    first, twin = measured(case()), measured(case())
    assert [place(first), place(twin), place(first), place(twin)] == [1, 2, 1, 2]


def test_a_result_lives_no_longer_than_its_record():
    @cached_by_record
    def result(record: Record) -> Result:
        return Result()

    record = measured(case())
    seen = weakref.ref(result(record))
    assert seen() is result(record)
    del record
    assert seen() is None
