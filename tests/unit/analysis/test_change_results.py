"""Results of changed settings: whether each helped, on made-up records whose answer is known."""

from dataclasses import replace

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.change_results import ChangeResult, change_results
from distbench.core.case import Case
from distbench.plan.setting_changes import ChangeTrials, SettingChange
from distbench.record import Record
from distbench.suite import parse_suite_text
from support.records import case, failed, info, measured

SUITE = parse_suite_text(
    "workload: mlp\ndata: synthetic\nbatch: {global_batch_size: 8}\nstrategies: [ddp]\nworld_sizes: [2]\n"
)
BASE = case("ddp")
FASTER, SLOWER, SAME, CRASHED = (
    replace(BASE, name=f"ddp/{kind}", **{field: value})
    for kind, field, value in (
        ("compiled", "compile", "default"),
        ("full", "activation_checkpointing", "full"),
        ("selective", "activation_checkpointing", "selective"),
        ("threads", "threads", 2),
    )
)
CHANGES = {
    FASTER.id: SettingChange("compile", True),
    SLOWER.id: SettingChange("activation_checkpointing", "full"),
    SAME.id: SettingChange("activation_checkpointing", "selective"),
    CRASHED.id: SettingChange("threads", 2),
}
REJECTED = {SettingChange("optimizer.kernel", "none"): "there is no such kernel"}


def results(*records: Record) -> dict[str, ChangeResult]:
    cases: dict[str, Case] = {record.case_id: record.case for record in records}
    trials = ChangeTrials(
        SUITE, BASE.id, {each: CHANGES[each] for each in cases if each != BASE.id}, REJECTED
    )
    found = change_results(RunAnalysis(info(*cases.values()), records), trials)
    return {result.change.text: result for result in found}


def rounds(of: Case, speeds: list[float]) -> list[Record]:
    return [measured(of, speed, round_=number) for number, speed in enumerate(speeds)]


def test_what_is_measurably_faster_helps_and_nothing_else():
    found = results(
        *rounds(BASE, [1000, 1004, 998, 1001]),
        *rounds(FASTER, [1200, 1206, 1197, 1201]),
        *rounds(SLOWER, [800, 803, 798, 801]),
        *rounds(SAME, [1001, 1003, 999, 1000]),
        failed(CRASHED, "rank 0 in time: RuntimeError: no"),
    )
    assert {text: result.helped for text, result in found.items()} == {
        "compile: true": True,
        "activation_checkpointing: full": False,
        "activation_checkpointing: selective": False,
        "threads: 2": None,
        "optimizer.kernel: none": None,
    }
    ratio = found["compile: true"].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(1.2, rel=0.01)
    assert ratio.low < 1.2 < ratio.high
    said = [result.sentence for result in found.values()]
    assert said[0].startswith("compile: true: 1.2")
    assert [text.rpartition(": ")[2] for text in said[:3]] == [
        "it helps",
        "it is slower",
        "no measurable difference",
    ]
    assert said[3:] == [
        "threads: 2: crashed: rank 0 in time: RuntimeError: no",
        "optimizer.kernel: none: not possible: there is no such kernel",
    ]


def test_what_was_disturbed_or_measured_once_is_not_said_to_help():
    noisy = [
        replace(each, degraded="others took 79% of the CPU") for each in rounds(FASTER, [1200, 1201, 1202])
    ]
    found = results(*rounds(BASE, [1000, 1001, 1002]), *noisy)
    assert found["compile: true"].helped is None
    assert "others took 79% of the CPU" in found["compile: true"].sentence
    once = results(measured(BASE, 1000), measured(FASTER, 1200))["compile: true"]
    assert (once.helped, once.to_json()["speedup"], once.to_json()["speedup_low"]) == (None, 1.2, None)
    assert once.sentence.endswith("the noise is unknown, because no case was measured twice")


def test_without_a_speed_of_the_case_itself_nothing_is_compared():
    found = results(failed(BASE, "rank 1 in time: RuntimeError: gone"), *rounds(FASTER, [1200, 1201]))
    result = found["compile: true"]
    assert (result.ratio, result.helped) == (None, None)
    assert result.reason == "nothing to compare with: crashed: rank 1 in time: RuntimeError: gone"
