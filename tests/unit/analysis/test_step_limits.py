"""What limits a step: the rules, on times whose diagnosis is known, and what is said of a run."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.step_limit_kinds import LOSSES
from distbench.analysis.step_limits import StepLimit, StepTimes, limit_of, step_limit
from distbench.analysis.wording.findings import all_findings, key_findings
from distbench.core.case import PluginChoice
from distbench.record import Record
from distbench.views.diagnosis import DiagnosisView
from support.records import case, failed, info, measured
from support.runs import call

DDP, FSDP, ZERO = case("ddp"), case("fsdp"), case("zero2")


@pytest.mark.parametrize("loss", LOSSES, ids=[loss.limit for loss in LOSSES])
def test_a_loss_limits_a_step_from_its_share_on(loss):
    above, below = (StepTimes(2.0, **{loss.limit: 2.0 * share}) for share in (loss.least, loss.least - 0.01))
    found = limit_of(above)
    assert (found.limit, found.word, found.share) == (loss.limit, loss.word, loss.least)
    assert found.sentence == f"{loss.least:.0%} of the step is {loss.noun}"
    assert found.advice == loss.advice
    assert limit_of(below).word == "compute-bound"


def test_the_largest_of_several_losses_is_named_and_small_ones_leave_the_computation():
    both = StepTimes(1.0, data=0.1, communication=0.3, optimizer=0.2)
    assert limit_of(both).word == "communication-bound"
    small = StepTimes(1.0, data=0.04, communication=0.09, optimizer=0.05, host=0.02)
    found = limit_of(small)
    # the optimizer computes, too
    assert (found.word, found.share) == ("compute-bound", pytest.approx(0.85))
    assert found.sentence == (
        "85% of the step is computation; the largest loss, 9%, is transfer that no computation hides"
    )


def profiled(of: Any, exposed: float, work: list[float], **values: float) -> Record:
    """Return a record of steps of 1 s on two ranks that work for so long, each in seconds."""
    parts = {"profile_step_s": 1.0, "profile_exposed_comm_s": exposed, "profile_optimizer_s": 0.02}
    record = measured(of, 1000.0, **{"step_s": 1.0, "profile_data_s": 0.01, **parts, **values})
    samples = {"work_s": [[each] for each in work], "profile_step_s": [[1.0]] * 2}
    return replace(record, samples={**record.samples, **samples})


@pytest.mark.parametrize(
    ("exposed", "work", "values", "word", "share"),
    [
        (0.3, [1.0, 1.0], {}, "communication-bound", 0.3),
        # of 0.3 s that are exposed, 0.25 s are waiting; the other rank costs the first half of its step
        (0.3, [0.5, 1.0], {}, "imbalance between ranks", 0.5),
        # a rank that is late after its last collective is not waited for in this step
        (0.01, [0.75, 1.0], {}, "imbalance between ranks", 0.25),
        (0.01, [0.92, 1.0], {}, "compute-bound", 0.91),
        (0.4, [0.7, 0.7], {"bubble_s": 0.3}, "pipeline bubble", 0.3),
        (0.05, [1.0, 1.0], {}, "compute-bound", 0.94),
    ],
    ids=["transfer", "waiting", "late", "nearly even", "stages", "none"],
)
def test_exposed_communication_is_transfer_waiting_or_a_bubble(exposed, work, values, word, share):
    (row,) = RunAnalysis(info(DDP), [profiled(DDP, exposed, work, **values)]).cases
    found = step_limit(row)
    assert isinstance(found, StepLimit)
    assert (found.word, found.share) == (word, pytest.approx(share))


def with_tokens(work: list[list[float]], tokens: list[list[float]]) -> Record:
    """Return a record of two ranks that work for so many seconds on so many tokens, by step."""
    samples = {"work_s": work, "profile_tokens": tokens, "profile_step_s": [[1.0] * len(work[0])] * 2}
    record = profiled(DDP, 0.3, [1.0, 1.0], imbalance=1.4)
    return replace(record, samples={**record.samples, **samples})


@pytest.mark.parametrize(
    ("work", "tokens", "is_by_length"),
    [
        ([[0.6, 1.0], [1.0, 0.5]], [[60, 100], [100, 50]], True),
        # a fixed part of a step, and attention, whose time grows faster
        ([[0.7, 1.0], [1.0, 0.65]], [[60, 100], [100, 50]], True),
        ([[0.4, 1.0], [1.0, 0.3]], [[60, 100], [100, 50]], True),
        # a slow rank whose rows are as long, a little longer, or at random so
        ([[0.6, 0.6], [1.0, 1.0]], [[80, 80], [80, 80]], False),
        ([[0.6, 0.6], [1.0, 1.0]], [[79, 80], [81, 84]], False),
        ([[0.6, 0.6], [1.0, 1.0]], [[90, 70], [75, 85]], False),
        # the one with more tokens is the faster one
        ([[0.6, 1.0], [1.0, 0.6]], [[100, 60], [60, 100]], False),
        # lengths differ far more than the work
        ([[0.97, 1.0], [0.7, 0.8]], [[100, 20], [20, 100]], False),
        # one step may be chance
        ([[0.6], [1.0]], [[60], [100]], False),
    ],
)
def test_an_imbalance_is_one_of_lengths_only_if_tokens_explain_the_work(work, tokens, is_by_length):
    record = with_tokens(work, tokens)
    run = RunAnalysis(info(DDP), [record])
    found = step_limit(run.cases[0])
    assert isinstance(found, StepLimit)
    said = " ".join([*key_findings(run), *all_findings(run)])
    assert (found.word == "imbalance between ranks (lengths of rows)") == is_by_length
    assert ("because their rows differ in length" in said) == is_by_length
    assert ("group_by_length: true" in found.advice) == is_by_length
    if is_by_length:
        assert "the rank with most tokens in a step has 1.29x the mean" in found.sentence
    else:
        assert found.word == "imbalance between ranks"


@pytest.mark.parametrize(
    ("calls", "each", "word"),
    [
        (10, 2**18 - 1, "communication-bound (latency)"),
        (10, 2**18, "communication-bound"),
        # a model that is small as a whole has nothing to merge
        (9, 2**10, "communication-bound"),
    ],
)
def test_many_small_collectives_are_limited_by_latency(calls, each, word):
    of = profiled(DDP, 0.3, [1.0, 1.0], comm_calls=calls, comm_bytes=calls * each)
    (row,) = RunAnalysis(info(DDP), [of]).cases
    found = step_limit(row)
    assert isinstance(found, StepLimit)
    assert (found.word, found.share) == (word, pytest.approx(0.3))
    assert f", in {calls} calls of " in found.sentence


@pytest.mark.parametrize(
    ("timed", "word"),
    [(1.0, "host-bound"), (0.75, "host-bound"), (1.5, "host-bound"), (0.6, "compute-bound")],
)
def test_gaps_are_those_of_the_profiled_step_at_most(timed, word):
    """A rank is busy for 0.6 s of a profiled step of 1 s; a timed step of 1.5 s was disturbed."""
    step = {"rank": 0, "step": 0, "kind": "step", "name": "", "begin_s": 0.0, "end_s": 1.0, "busy_s": 0.6}
    record = replace(
        profiled(DDP, 0.05, [1.0, 1.0], step_s=timed),
        tables={"timeline": [{**step, "bridged_s": 1e-4}]},
    )
    (row,) = RunAnalysis(info(DDP), [record]).cases
    found = step_limit(row)
    assert isinstance(found, StepLimit)
    assert found.word == word
    if word == "host-bound":
        # making a batch takes 0.01 s of the gaps
        assert found.share == pytest.approx(1 - 0.6 / min(timed, 1.0) - 0.01)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"stage": 2, "offload_optimizer": "cpu"}, "memory-bound (offload)"), ({"stage": 2}, "host-bound")],
)
def test_a_gpu_that_waits_for_offloaded_states_is_limited_by_them(options, word):
    """Of 1 s, copies take 0.2 s of which computation hides 0.05 s, and 0.25 s lie between two copies."""
    of = case("zero2", device="cuda", strategy=PluginChoice("zero", options))
    pieces = [
        ("step", "", 0.0, 1.0, 0.65),
        ("compute", "backward", 0.0, 0.5, 0.5),
        ("copy", "Memcpy DtoH (Device -> Pinned)", 0.45, 0.55, 0.1),
        ("copy", "Memcpy HtoD (Pinned -> Device)", 0.8, 0.9, 0.1),
    ]
    names = ("kind", "name", "begin_s", "end_s", "busy_s")
    rows = [
        {"rank": 0, "step": 0, "bridged_s": 1e-4, **dict(zip(names, each, strict=True))} for each in pieces
    ]
    record = replace(
        profiled(of, 0.01, [1.0, 1.0], profile_idle_s=0.35, profile_optimizer_s=0.2),
        tables={"timeline": rows},
    )
    (row,) = RunAnalysis(info(of), [record]).cases
    found = step_limit(row)
    assert isinstance(found, StepLimit)
    assert found.word == word
    # making a batch takes 0.01 s, of the idle time or of the copies
    assert found.share == pytest.approx(0.15 - 0.01 + 0.25 if "offload" in word else 0.35 - 0.01)


def test_a_rank_that_sleeps_after_its_last_collective_leaves_no_gap_on_the_others():
    steps = [
        {"rank": rank, "step": 0, "kind": "step", "name": "", "begin_s": 0.0, "end_s": end, "busy_s": busy}
        for rank, end, busy in ((0, 0.75, 0.75), (1, 1.0, 0.76))
    ]
    of = profiled(DDP, 0.01, [0.8, 1.0], step_s=1.0)
    record = replace(of, tables={"timeline": [{**step, "bridged_s": 1e-4} for step in steps]})
    (row,) = RunAnalysis(info(DDP), [record]).cases
    found = step_limit(row)
    assert isinstance(found, StepLimit)
    assert found.word == "imbalance between ranks"


def test_what_was_disturbed_failed_or_was_not_profiled_has_no_limit_but_a_reason():
    noisy = replace(profiled(FSDP, 0.3, [1.0, 1.0]), degraded="others took 79% of the CPU time")
    run = RunAnalysis(info(DDP, FSDP, ZERO), [measured(DDP), noisy, failed(ZERO)])
    ddp, fsdp, zero = run.cases
    assert step_limit(ddp).startswith("no step was profiled; set measure.profile_steps to 1 or more")
    columns = {
        **measured(DDP).columns,
        "profile_step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": ""},
    }
    (described,) = RunAnalysis(info(DDP), [replace(measured(DDP), columns=columns)]).cases
    assert step_limit(described) == step_limit(ddp), "also if only its column is known"
    found = step_limit(fsdp)
    assert isinstance(found, StepLimit)
    assert (found.word, found.share) == ("noise", None)
    assert "others took 79%" in found.sentence
    assert step_limit(zero) == "rank 1 in time: RuntimeError: no"


def test_a_run_says_what_limits_its_cases_and_the_view_what_to_try():
    records = [
        profiled(DDP, 0.05, [1.0, 1.0]),
        profiled(FSDP, 0.3, [1.0, 1.0]),
        profiled(ZERO, 0.2, [1.0, 1.0]),
    ]
    run = RunAnalysis(info(DDP, FSDP, ZERO), records)
    said = key_findings(run)
    assert (
        "Communication-bound: fsdp, zero2: 20% to 30% of the step is transfer that no computation hides "
        "(what to try: distbench show --view diagnosis)."
    ) in said
    assert any(each.startswith("Compute-bound: ddp: 94% of the step is computation") for each in said)
    table = DiagnosisView().table(run)
    assert [(row["strategy"], row["limit"]) for row in table.records()] == [
        ("ddp", "computation"),
        ("fsdp", "communication"),
        ("zero2", "communication"),
    ]
    assert [note.partition(":")[0] for note in table.notes] == ["Compute-bound", "Communication-bound"]


def test_each_key_that_is_advised_is_one_of_a_suite():
    advised = {key for loss in LOSSES for key in re.findall(r"\b[a-z]\w*\.[a-z]\w*\b", loss.advice)}
    assert {"pp.micro_batches", "batch.micro_batch_size", "fsdp.sharding"} <= advised
    known = {each["key"] for each in json.loads(call("list", "suite", "--json").stdout)}
    strategies = json.loads(call("list", "strategies", "--json").stdout)["strategies"]
    # plug-ins of the tests that can't be loaded without torch have none
    options = {
        f"{each['name']}.{option['name']}" for each in strategies for option in each.get("options", [])
    }
    assert advised - known - options == set()
