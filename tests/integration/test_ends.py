"""Ends of a rank, by whom and in which phase: each is told with the right rank, and the suite goes on.

Models that are no model of the work, or another one in one rank, end too, and are told what they lack.
"""

import pytest

from support.runs import QUICK, Finished, record_of, run_in

pytestmark = pytest.mark.deep

END = (
    *("KilledInWarmUp", "KilledInCount", "KilledInProfile"),
    *("Segfaults", "Terminated", "Exits", "Interrupted"),
    *("GivesNothing", "GivesOneRowForAll", "HasMoreInRankOne", "HasOtherShapesInRankOne"),
    *("RemovesItsFolder", "SpeaksToTheTerminal"),
)
SUITE = QUICK + "launcher: local\nstrategies: [ddp]\n"


@pytest.fixture(scope="module")
def ended(tmp_path_factory) -> Finished:
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
        case("Segfaults", "time", "SIGSEGV", "rank 1: SIGSEGV"),
        case("Terminated", "time", "SIGTERM", "rank 1: SIGTERM"),
        case("Exits", "time", "SystemExit at ends.py", "rank 1: sys.exit(5)"),
        case("Interrupted", "time", "KeyboardInterrupt", "rank 1: KeyboardInterrupt"),
    ],
)
def test_an_end_is_told_with_rank_and_phase(ended, drill, model, phase, told):
    record = record_of(ended, f"ends:{model}")
    drill.noticed(record["wall_s"])
    drill.seen(record["reason"])
    assert (record["status"], record["failure"]["rank"]) == ("crashed", 1)
    assert record["failure"]["phase"] == phase
    assert told in record["reason"]


@pytest.mark.parametrize(
    ("model", "phase", "kept"),
    [
        case("KilledInCount", "count", "tokens_per_s", "rank 1: kill -9 in the count pass"),
        case("KilledInProfile", "profile", "comm_bytes", "rank 1: kill -9 in the profile"),
    ],
)
def test_an_end_after_the_timed_steps_leaves_their_numbers(ended, drill, model, phase, kept):
    record = record_of(ended, f"ends:{model}")
    drill.noticed(record["wall_s"])
    drill.seen(record["reason"])
    assert (record["status"], record["failure"]["rank"], record["failure"]["phase"]) == ("measured", 1, phase)
    assert kept in record["values"] and "incomplete: rank 1" in record["absent"]["grad_norm"]


def lacking(model: str, told: str, drill: str) -> object:
    return pytest.param(model, told, id=model, marks=pytest.mark.drill(drill))


@pytest.mark.parametrize(
    ("model", "told"),
    [
        lacking("GivesNothing", "NoneType", "the model gives None"),
        lacking("GivesOneRowForAll", "shape", "the model gives logits of another shape"),
        lacking("HasMoreInRankOne", "more.weight", "rank 1 has more parameters"),
        lacking("HasOtherShapesInRankOne", "layers.1.up", "rank 1 has other shapes"),
    ],
)
def test_a_model_that_can_not_be_trained_is_told_what_it_lacks(ended, drill, model, told):
    record = record_of(ended, f"ends:{model}")
    drill.seen(record["reason"])
    assert record["status"] == "crashed"
    assert told in record["reason"]


@pytest.mark.drill("the model removes the folder of its trial")
def test_a_model_that_removes_what_was_written_loses_its_trial_only(ended, drill):
    record = record_of(ended, "ends:RemovesItsFolder")
    drill.seen(record["reason"])
    assert record["status"] == "crashed"


@pytest.mark.drill("rank 1 raises with ESC, NUL, half a character and a script in its message")
def test_a_message_is_text_wherever_it_is_shown(ended, drill):
    record = record_of(ended, "ends:SpeaksToTheTerminal")
    drill.seen(record["reason"])
    page = (ended.folder / "report.html").read_text()
    assert "document.title" in page, "it is told"
    assert "<script>document.title" not in page
    assert not {"\x1b", "\0"} & set(ended.errors + page)


@pytest.mark.drill("rank 1 trains on other data than it was given")
def test_other_data_in_one_rank_is_another_training(tmp_path, drill):
    finished = run_in(tmp_path, SUITE.replace("small:Small", "ends:SeesOtherDataInRankOne"), "--check")
    (case,) = finished.cases.values()
    assert finished.code == 1
    assert case["equivalence"]["verdict"] == "differs"
    drill.seen(finished.errors[finished.errors.index("Equivalence: ") :])


@pytest.mark.drill("rank 1: kill -9 in the check of a case")
def test_a_kill_in_a_check_is_told_and_what_is_measured_stays(tmp_path, drill):
    finished = run_in(tmp_path, SUITE.replace("small:Small", "ends:Killed"), "--check")
    records = [Finished.read(file) for file in finished.folder.glob("checks/*/*/record.json")]
    failed = [record for record in records if record["status"] != "measured"]
    assert len(failed) < len(records), "the reference has one rank"
    assert {record["status"] for record in failed} == {"crashed"}
    assert {record["failure"]["rank"] for record in failed} == {1}
    drill.seen(failed[0]["reason"])
