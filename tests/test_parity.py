"""Whether the cases of a comparison did the same work: differences named, classified and shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Finished
from records import case, info, measured

from distbench.analysis.parity import comparisons, findings, footnotes
from distbench.analysis.summary import CaseSummary, summarise
from distbench.case import Batch, Case, Precision
from distbench.record import Record
from distbench.report import page, terminal
from distbench.report.parity_view import table

EFFECTIVE = {
    "engine": "TorchEngine",
    "parameters": 100,
    "world_size": 2,
    "optimizer": {"class": "torch.optim.adamw.AdamW", "kernel": "fused", "lr": 0.001, "betas": (0.9, 0.95)},
    "dtypes": {"compute": "fp32", "reduce": "fp32", "master": "fp32", "optimizer_state": "fp32"},
    "clip_grad_norm": None,
}


def record(of: Case, environment: dict[str, Any] | None = None, round_: int = 0, **changes: Any) -> Record:
    effective: dict[str, Any] = {**EFFECTIVE, "optimizer": dict(EFFECTIVE["optimizer"])}  # type: ignore[call-overload]
    effective["dtypes"] = dict(EFFECTIVE["dtypes"])  # type: ignore[call-overload]
    for key, value in changes.items():
        outer, _, inner = key.partition("__")
        if inner:
            effective[outer][inner] = value
        else:
            effective[outer] = value
    told = environment if environment is not None else {"threads": 1, "tf32": False}
    return dataclasses.replace(measured(of, round_=round_), effective=effective, environment=told)


def rows(*records: Record) -> list[CaseSummary]:
    return summarise(info(*{r.case_id: r.case for r in records}.values()), records)


DDP, FSDP = case("ddp"), case("fsdp")


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dtypes__optimizer_state": "bf16"}, "work"),
        ({"dtypes__master": "bf16"}, "work"),
        ({"optimizer__kernel": "foreach"}, "work"),
        ({"optimizer__betas": (0.9, 0.999)}, "work"),
        ({"clip_grad_norm": 1.0}, "work"),
        ({"parameters": 101}, "work"),
        ({"a_key_of_a_foreign_plugin": 7}, "unknown"),
        ({"units": 5}, "strategy"),
        ({"engine": "FSDPModule"}, "strategy"),
        ({"environment": {"threads": 2, "tf32": False}}, "speed"),
        ({"environment": {"threads": 1, "tf32": True}}, "work"),
    ],
)
def test_each_difference_from_the_reference_is_named_with_what_it_changes(
    change: dict[str, Any], kind: str
) -> None:
    (comparison,) = comparisons(rows(record(DDP), record(FSDP, **change)))
    assert comparison.reference.case == DDP
    assert comparison.differences[DDP.id] == ()
    seen = [
        each for each in comparison.differences[FSDP.id] if each.expected != "not told" or kind != "strategy"
    ]
    expected = [] if kind == "strategy" and "units" in change else [kind]
    assert [each.kind for each in seen] == expected
    assert bool(comparison.findings(comparison.cases[1])) == (kind in ("work", "unknown"))


def test_the_reference_is_single_and_a_single_process_reduces_nothing() -> None:
    single = case("single", 1)
    (comparison,) = comparisons(rows(record(DDP), record(single, dtypes__reduce=None)))
    assert comparison.reference.case == single
    assert not comparison.findings(comparison.cases[0])


def test_a_setting_that_only_one_of_them_tells_is_no_silent_agreement() -> None:
    quiet = record(FSDP)
    del quiet.effective["clip_grad_norm"]
    (found,) = findings(rows(record(DDP), quiet))[FSDP.id]
    assert (found.key, found.found) == ("clip_grad_norm", "not told")


def test_what_the_suite_asks_for_on_purpose_is_another_comparison() -> None:
    bf16 = case("fsdp", precision=Precision(compute="bf16"))
    larger = case("fsdp", batch=Batch(16, 8, 1))
    found = comparisons(rows(record(DDP), record(bf16, dtypes__compute="bf16"), record(larger)))
    assert [len(comparison.cases) for comparison in found] == [1, 1, 1]


def test_trials_of_one_case_that_differ_are_a_finding() -> None:
    changed = record(DDP, round_=1, optimizer__lr=0.1)
    (found,) = findings(rows(record(DDP), changed))[DDP.id]
    assert (found.key, found.found) == ("optimizer.lr", "several")


def test_a_finding_stands_beside_every_number_that_it_touches_in_terminal_and_page() -> None:
    bad = {"optimizer__kernel": "<b>mine</b>\x1b[31m"}
    zero = case("zero2")
    records = [record(DDP), record(FSDP, **bad), record(zero, **bad, clip_grad_norm=1.0)]
    run = info(DDP, FSDP, zero)
    shown = terminal.table(run, records)
    marked = [line for line in shown.splitlines() if line.startswith(("ddp", "fsdp", "zero2"))]
    assert [line.split()[0] for line in marked] == ["ddp", "fsdp[a]", "zero2[a][b]"]
    assert "[a] Not the same work: optimizer.kernel" in shown
    assert "\x1b" not in shown
    html = page.render(run, records)
    assert html.count('href="#not-the-same-work"') == 4, "in the table of the cases and in that of the values"
    assert "<b>mine" not in html
    assert footnotes(rows(record(DDP))).sentences == {}


def test_the_view_says_in_a_sentence_when_all_did_the_same_work() -> None:
    same = table(rows(record(DDP), record(FSDP, engine="FSDPModule")))
    assert same.notes == ("The 1 cases beside ddp did the same work as it did.",)
    other = table(rows(record(DDP), record(FSDP, clip_grad_norm=1.0)))
    assert "1 of 1 cases beside ddp differ in the work that they did: fsdp." in other.notes
    assert ("changes the work, against ddp",) in other.rows


SUITE = """
workload: {transformer: {dim: 32, depth: 1, heads: 2, kv_heads: 2, ffn_dim: 64, seq_len: 16}}
batch: {global_batch_size: 4}
measure: {warmup: 1, steps: 2, trials: 1}
world_sizes: [2]
"""


@pytest.mark.train
def test_strategies_of_one_suite_do_the_same_work_and_strict_parity_agrees(
    run_suite: Callable[..., Finished],
) -> None:
    strategies = "strategies: [single, ddp, {fsdp: {version: [1, 2]}}, {zero: {stage: [0, 1, 2, 3]}}]\n"
    finished = run_suite(SUITE + strategies, "--strict-parity")
    assert finished.code == 0, finished.errors
    assert all(case["parity"] == [] for case in finished.cases.values())


@pytest.mark.train
def test_another_kernel_of_the_optimizer_is_a_finding_and_strict_parity_makes_it_an_error(
    run_suite: Callable[..., Finished],
) -> None:
    finished = run_suite(
        SUITE + "strategies: [ddp, {zero: {stage: 1, optimizer_kernel: deepspeed}}]\n", "--strict-parity"
    )
    assert finished.code == 1
    assert {case["status"] for case in finished.cases.values()} == {"measured"}, "its numbers are kept"
    assert "optimizer.kernel = DeepSpeedCPUAdam, the reference has fused" in finished.errors
    (found,) = [case["parity"] for case in finished.cases.values() if case["parity"]]
    assert {each["key"] for each in found} == {"optimizer.class", "optimizer.kernel"}
