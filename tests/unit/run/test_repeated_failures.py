"""Failures before ranks meet: the words that tell the cause, and no trial that only repeats it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from distbench.ipc.trial_files import RankError
from distbench.plan import PlannedTrial
from distbench.record import NOT_LAUNCHED_TEXT, Failure, Record, Status
from distbench.run.failure_reasons import RankFailure
from distbench.run.repeated_failures import RepeatedFailures
from support.records import case, failed, measured, unsupported


def not_met(name: str, world_size: int = 2, status: Status = Status.CRASHED) -> Record:
    ended = failed(case(name, world_size), "rank 1 in start: RuntimeError: no", status=status)
    return replace(ended, failure=Failure(rank=1, phase="start"))


DDP, FSDP = not_met("ddp"), not_met("fsdp")
LATE = not_met("fsdp", status=Status.INIT_TIMEOUT)
OUT_OF_MEMORY = not_met("ddp", status=Status.OOM_HOST)
LOST = replace(DDP, failure=Failure(rank=None, phase="start"))


@pytest.mark.parametrize(
    ("records", "size"),
    [([DDP, FSDP], 2), ([DDP, LATE], 2), ([DDP, FSDP], 4), ([DDP, not_met("ddp", 4)], 4), ([DDP, DDP], 2),
     ([measured(case("single", 1)), DDP, FSDP], 2), ([DDP, unsupported(case("dp")), FSDP], 2),
     ([DDP, OUT_OF_MEMORY, FSDP], 2)],
)  # fmt: skip
def test_ranks_that_can_not_meet_are_not_launched_a_third_time(records: list[Record], size: int) -> None:
    reason = seen(records).skip_reason(PlannedTrial(case("zero2", size)))
    assert reason.startswith(f"{NOT_LAUNCHED_TEXT}: ")
    assert "ended before their ranks met on 2" in reason
    assert "distbench doctor" in reason


@pytest.mark.parametrize(
    ("records", "size"),
    [([DDP], 2), ([DDP, FSDP], 1), ([DDP, not_met("fsdp", 4)], 2), ([DDP, measured(case("fsdp")), FSDP], 2),
     ([DDP, failed(case("fsdp")), FSDP], 2), ([DDP, measured(case("fsdp", 4)), FSDP], 2), ([LOST, LOST], 2),
     ([not_met("single", 1)] * 2, 2), ([OUT_OF_MEMORY] * 2, 2)],
)  # fmt: skip
def test_ranks_that_may_meet_are_launched(records: list[Record], size: int) -> None:
    assert seen(records).skip_reason(PlannedTrial(case("zero2", size))) == ""


def test_few_ranks_that_meet_do_not_prove_that_more_can() -> None:
    records = [not_met("ddp", 4), not_met("fsdp", 4), measured(case("zero2", 2))]
    assert seen(records).skip_reason(PlannedTrial(case("zero2", 4)))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "Gloo connectFullMesh failed with [/__w/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:152] "
            "timed out connecting: SO_ERROR: Connection refused, remote=[172.17.0.1]:39871",
            "Gloo connectFullMesh failed: timed out connecting: SO_ERROR: Connection refused, "
            "remote=[172.17.0.1]:39871",
        ),
        (
            "[enforce fail at /__w/pytorch/third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. "
            "Unable to find address for: eth7",
            "ifa != nullptr. Unable to find address for: eth7",
        ),
    ],
)
def test_where_gloo_raised_does_not_hide_the_cause(message: str, told: str) -> None:
    failure = RankFailure(1, 0.0, "start", RankError(0.0, "start", ["RuntimeError"], message))
    assert failure.reason == f"rank 1 in start: RuntimeError: {told}"


def seen(records: list[Record]) -> RepeatedFailures:
    failures = RepeatedFailures()
    for record in records:
        failures.add(record)
    return failures
