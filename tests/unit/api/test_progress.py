"""What is said while trials run: a reason that several share stands there once."""

from dataclasses import replace

import pytest

from distbench.api.progress import EventObserver
from distbench.record import Record, Status
from distbench.record.progress import ProgressEvent
from support.records import case, failed, unsupported

DDP, FSDP = case("ddp"), case("fsdp")
MINE = "RuntimeError at mymodel.py:12: no such layer"
LONG = "the loss function uses model of the module in addition to calling it"


def said(*records: Record) -> list[str]:
    """Reasons of the events that the ends of *records* make."""
    events: list[ProgressEvent] = []
    told = EventObserver(events.append)
    for record in records:
        told.trial_ended(record)
    return [event.reason for event in events]


def by_a_rank(record: Record) -> Record:
    return replace(record, status=Status.UNSUPPORTED)


@pytest.mark.parametrize(
    ("first", "second", "again"),
    [
        (unsupported(DDP, LONG), unsupported(FSDP, LONG), "as before"),
        (by_a_rank(failed(DDP, LONG)), by_a_rank(failed(FSDP, LONG)), "as before"),
        (
            failed(DDP, f"rank 1 in time: {MINE}", user_error=MINE),
            failed(FSDP, f"rank 0 in build: {MINE}", user_error=MINE),
            "rank 0 in build: RuntimeError at mymodel.py:12, as before",
        ),
        (failed(DDP), failed(FSDP), "rank 1 in time: RuntimeError: no"),
    ],
    ids=["before launch", "by a rank", "in the user's code", "in any other"],
)
def test_a_reason_stands_whole_at_the_first_that_has_it(first, second, again):
    assert said(first, second) == [first.reason, again]
