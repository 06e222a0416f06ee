"""What failed because of the machine is made again, unasked; what failed otherwise, if asked."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from distbench.plan import PlannedTrial
from distbench.record import NO_REFERENCE_TEXT, NODE_LOST_PHASE, Failure, Status
from distbench.record.run_folder import Run
from distbench.run.trial_index import TrialIndex
from support.paused_command import Held
from support.pretended_suites import pretended_suite
from support.records import case, failed, info, job_of, measured, unsupported
from support.runs import call

SUITE = pretended_suite(
    world_sizes="[1]",
    measure="{steps: 2, trials: 2}",
    limits="{start: 0.2}",
    launcher='{faulty: {file: "FAULT", rounds: [0]}}',
    strategies="[pretended]",
)


def broken_baseline(folder: Path, fault: str) -> tuple[Run, Path]:
    """A run whose trials failed in round 0, and the file whose absence mends it."""
    file = folder / "fault"
    file.write_text(fault)
    (folder / "suite.yaml").write_text(SUITE.replace("FAULT", str(file)))
    done = call("run", str(folder / "suite.yaml"), "--out", str(folder / "out"), "--quiet")
    assert done.returncode == 1, done.stderr
    (made,) = (folder / "out").iterdir()
    return Run(made), file


def statuses(run: Run) -> list[str]:
    return [record.status for record in sorted(run.records(), key=lambda record: record.round)]


MACHINE = [
    pytest.param("prepare", "prepare_failed", marks=pytest.mark.drill("nothing can be built, then it can")),
    pytest.param("hang", "init_timeout", marks=pytest.mark.drill("ranks don't start in time, then they do")),
    pytest.param("MemoryError", "oom_host", marks=pytest.mark.drill("the host's memory runs out, then not")),
]


@pytest.mark.parametrize(("fault", "status"), MACHINE)
def test_what_the_machine_failed_is_made_again_by_resume_and_stays_in_the_record(
    tmp_path, drill, fault, status
):
    run, file = broken_baseline(tmp_path, fault)
    assert statuses(run)[0] == status
    file.unlink()
    done = call("run", "--resume", str(run.folder), "--json")
    assert done.returncode == 0, done.stderr
    assert statuses(run) == ["measured", "measured"]
    retried = json.loads(done.stdout)["retried"]
    assert {tuple(attempt["status"] for attempt in each["attempts"]) for each in retried} == {(status,)}
    shown = call("show", str(run.folder)).stdout
    (line,) = [line for line in shown.splitlines() if "Retried after a failure" in line]
    drill.seen(line)
    assert f"round 1 ({status}, then measured)" in " ".join(shown.split())


@pytest.mark.drill("a rank crashes, and its trial is tried again")
def test_what_failed_otherwise_is_made_again_if_asked(tmp_path, drill):
    run, file = broken_baseline(tmp_path, "RuntimeError")
    file.unlink()
    assert call("run", "--resume", str(run.folder), "--quiet").returncode == 1
    assert statuses(run) == ["crashed", "measured"], "a crash says something of the case"
    done = call("run", "--resume", str(run.folder), "--retry-failed")
    drill.seen(done.stderr)
    assert "[1/1]" in done.stderr and "retrying failed trials: 1 trial" in done.stderr
    assert (done.returncode, statuses(run)) == (0, ["measured", "measured"])
    (record, _) = run.records()
    (attempt,) = record.attempts
    assert (attempt.status, attempt.reason) == ("crashed", "rank 0 in build: RuntimeError: it is gone")
    assert attempt.failure and attempt.failure.rank == 0
    query = ("query", "select round, launches from trials order by round", str(run.folder), "--json")
    assert json.loads(call(*query).stdout) == [{"round": 0, "launches": 2}, {"round": 1, "launches": 1}]


def test_each_attempt_that_fails_is_kept(tmp_path):
    run, file = broken_baseline(tmp_path, "MemoryError")
    file.write_text("RuntimeError")
    assert call("run", "--resume", str(run.folder), "--quiet").returncode == 1
    file.unlink()
    assert call("run", "--resume", str(run.folder), "--retry-failed", "--quiet").returncode == 0
    (record, _) = run.records()
    assert [attempt.status for attempt in record.attempts] == ["oom_host", "crashed"]


@pytest.mark.drill("kill -9 while a failed trial is tried again")
def test_an_attempt_is_known_even_if_the_next_one_is_killed(tmp_path):
    held = Held(tmp_path)
    held.process.kill()
    held.process.communicate()
    crashed = replace(failed(held.run.info().cases[0].case, round_=1), run_id=held.run.info().run_id)
    held.run.write_record(crashed)
    again = held.again("--retry-failed")
    again.kill()
    again.communicate()
    held.let_go()
    assert call("run", "--resume", str(held.folder), "--quiet").returncode == 0
    (record,) = (record for record in held.run.records() if record.round == 1)
    assert (record.status, [attempt.status for attempt in record.attempts]) == ("measured", ["crashed"])


def test_only_a_resumed_run_has_anything_to_retry(tmp_path):
    done = call("run", "suite.yaml", "--retry-failed")
    assert done.returncode == 2 and "use it with --resume RUN" in done.stderr


@pytest.fixture
def run(tmp_path) -> Run:
    return Run.create(tmp_path, info(case()), "")


@pytest.mark.parametrize(("phase", "is_made"), [("time", False), (NODE_LOST_PHASE, True)])
def test_a_trial_that_lost_its_node_is_made_again(run, phase, is_made):
    run.write_record(replace(failed(case()), failure=Failure(rank=None, phase=phase)))
    assert TrialIndex(run).pending([PlannedTrial(case())]) == ([PlannedTrial(case())] if is_made else [])


SMALLER_CASE = case("ddp", name="smaller")


@pytest.mark.parametrize(
    ("fallback", "retry_failed", "is_made"),
    [(None, False, True), (measured(SMALLER_CASE), False, False), (measured(SMALLER_CASE), True, True)],
    ids=["alone", "smaller case has run", "if asked"],
)
def test_a_case_that_a_smaller_one_has_replaced_is_settled(run, fallback, retry_failed, is_made):
    run.write_record(failed(case(), status=Status.OOM_HOST))
    if fallback:
        run.write_record(fallback)
    task = PlannedTrial(case(), fallbacks=(SMALLER_CASE,))
    assert TrialIndex(run, retry_failed=retry_failed).pending([task]) == ([task] if is_made else [])


REFERENCE = PlannedTrial(case("single"), job=job_of("check", role="reference", reference="r"))
COMPARED = PlannedTrial(case(), job=job_of("check", role="case", of=case().id, reference="r"), depends_on="r")


def trials_by_attempt(task: PlannedTrial, record: Any) -> Any:
    """The record that *task* left, with what is in *record*."""
    return replace(record, job=task.job, case=task.case, case_id=task.case.id)


def test_what_lacked_its_reference_is_made_again_with_it(run):
    lacking = unsupported(case(), f"{NO_REFERENCE_TEXT}: rank 0 crashed")
    run.write_record(trials_by_attempt(COMPARED, lacking))
    run.write_record(trials_by_attempt(REFERENCE, failed(case())))
    assert TrialIndex(run).pending([REFERENCE, COMPARED]) == []
    assert TrialIndex(run, retry_failed=True).pending([REFERENCE, COMPARED]) == [REFERENCE, COMPARED]
    # a session that was stopped between the two
    run.write_record(trials_by_attempt(REFERENCE, measured(case())))
    assert TrialIndex(run).pending([REFERENCE, COMPARED]) == [COMPARED]
    run.write_record(trials_by_attempt(COMPARED, unsupported(case())))
    assert TrialIndex(run).pending([REFERENCE, COMPARED]) == []


def test_what_needs_a_damaged_reference_says_so(run):
    run.write_record(trials_by_attempt(REFERENCE, measured(case())))
    (file,) = run.folder.glob("checks/*/*/record.json")
    file.write_text("{")
    ledger = TrialIndex(run)
    assert ledger.pending([REFERENCE, COMPARED]) == [COMPARED]
    ledger.mark_damaged_references([REFERENCE, COMPARED])
    assert ledger.missing_reference(COMPARED) == "the trial is damaged"
