"""Ends of a rank, by whom and in which phase: each is told with the right rank, and the suite goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import QUICK, Finished, record_of, run_in
from drills import Drill

pytestmark = [pytest.mark.train, pytest.mark.deep]

END = (
    *("KilledInWarmUp", "KilledInCount", "KilledInProfile"),
    *("Segfaults", "Terminated", "Exits", "Interrupted"),
)
SUITE = QUICK + "launcher: local\nstrategies: [ddp]\n"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run of all models that end in their own way."""
    models = ", ".join(f"ends:{model}" for model in END)
    text = SUITE + f"axes: {{workload.user.model: [{models}]}}\n"
    return run_in(tmp_path_factory.mktemp("ended"), text)


def case(model: str, phase: str, told: str, drill: str) -> object:
    return pytest.param(model, phase, told, id=model, marks=pytest.mark.drill(drill))


@pytest.mark.parametrize(
    ("model", "phase", "told"),
    [
        case("KilledInWarmUp", "warmup", "SIGKILL", "rank 1: kill -9 in the warm-up"),
        case("KilledInCount", "count", "SIGKILL", "rank 1: kill -9 in the count pass"),
        case("KilledInProfile", "profile", "SIGKILL", "rank 1: kill -9 in the profile"),
        case("Segfaults", "time", "SIGSEGV", "rank 1: SIGSEGV"),
        case("Terminated", "time", "SIGTERM", "rank 1: SIGTERM"),
        case("Exits", "time", "SystemExit: 5", "rank 1: sys.exit(5)"),
        case("Interrupted", "time", "KeyboardInterrupt", "rank 1: KeyboardInterrupt"),
    ],
)
def test_an_end_is_told_with_rank_and_phase(
    ended: Finished, drill: Drill, model: str, phase: str, told: str
) -> None:
    record = record_of(ended, f"ends:{model}")
    drill.noticed(record["wall_s"])
    drill.seen(record["reason"])
    assert (record["status"], record["failure"]["rank"]) == ("crashed", 1)
    assert record["failure"]["phase"] == phase
    assert told in record["reason"]


@pytest.mark.drill("rank 1: kill -9 in the check of a case")
def test_a_kill_in_a_check_is_told_and_what_is_measured_stays(tmp_path: Path, drill: Drill) -> None:
    finished = run_in(tmp_path, SUITE.replace("small:Small", "ends:Killed"), "--check")
    records = [Finished.read(file) for file in finished.folder.glob("checks/*/*/record.json")]
    failed = [record for record in records if record["status"] != "measured"]
    assert len(failed) < len(records), "the reference has one rank"
    assert {record["status"] for record in failed} == {"crashed"}
    assert {record["failure"]["rank"] for record in failed} == {1}
    drill.seen(failed[0]["reason"])
