"""Rates of a machine: which trials a suite gives, mistakes in its section, and what the view says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice, PrecisionConfig
from distbench.core.job import PlannedTrial, job_kind
from distbench.prediction.probed_rates import PROBE, RATES_TABLE
from distbench.prediction.recorded_layouts import LAYOUT_TABLE
from distbench.report.run_export import run_json
from distbench.views.base import all_views
from support.records import case, failed, info, job_of, measured
from support.runs import OF_OUR_OWN, QUICK
from support.suites import write_suite

TP = PluginChoice("tp")
SUITE = QUICK.replace("trials: 1", "trials: 0").replace(*OF_OUR_OWN) + "strategies: [ddp]\n"


def trials(*cases: Case, seconds: float = 45.0) -> list[PlannedTrial]:
    kind = job_kind("probe")
    machine: Any = None  # a plan of rates asks it nothing
    return list(kind.planned_trials(kind.section(seconds=seconds), cases, machine))


def test_predictions_read_the_table_that_a_probe_writes():
    assert [table.name for table in job_kind(PROBE).tables] == [RATES_TABLE, LAYOUT_TABLE]


def test_cases_with_the_same_rates_share_a_trial_that_knows_them():
    same = [
        case("ddp"),
        case("fsdp", batch=Batch(8, 2, 2)),
        case("tp", strategy=TP, batch=Batch(8, 8, 1)),
        case("ddp", optimizer=OptimizerConfig(lr=0.5)),
        case("ddp", seed=2),
    ]
    (trial,) = trials(*same, seconds=9)
    options = trial.job.options
    assert options.cases == tuple(each.id for each in same)
    assert options.samples == (1, 2, 4, 8), "of tp 8, and its share of 4; of fsdp 2; and one"
    assert options.seconds == 9
    assert job_kind("probe").predicted_seconds(trial) == 9
    assert (trial.case.strategy.name, trial.case.world_size) == ("ddp", 2)
    assert trial.case.batch == Batch(16, 8, 1), "each rank has rows for the largest micro-batch"


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 1},
        {"workload": PluginChoice("mlp")},
        {"precision": PrecisionConfig(compute="bf16")},
        {"activation_checkpointing": "full"},
        {"compile": "default"},
        {"optimizer": OptimizerConfig("sgd")},
        {"optimizer": OptimizerConfig(clip_grad_norm=1.0)},
        {"env": {"MKL_DYNAMIC": "0"}},
        {"threads": 2},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_what_decides_the_rates_makes_a_trial_of_its_own(changes):
    two = trials(case(), case(**changes))
    assert [len(trial.job.options.cases) for trial in two] == [1, 1]
    names = [trial.case.name for trial in two]
    assert len(set(names)) == 2
    assert all(name.startswith("probe/ws") for name in names)
    assert len({trial.case.id for trial in two}) == 2


def test_one_device_is_probed_without_a_wrapper():
    (trial,) = trials(case("fsdp", world_size=1))
    assert trial.case.strategy.name == "single"


@pytest.mark.parametrize(
    ("micro_batches", "samples"),
    [((1,), (1, 2, 4)), ((2,), (1, 2, 4)), ((8,), (1, 4, 8)), ((2, 16), (1, 2, 16)), ((3, 9), (1, 3, 9))],
)
def test_at_least_three_micro_batches_are_timed(micro_batches, samples):
    (trial,) = trials(*(case(batch=Batch(2 * size, size, 1)) for size in micro_batches))
    assert trial.job.options.samples == samples


def test_many_micro_batches_are_thinned_to_four():
    (trial,) = trials(*(case(batch=Batch(2 * size, size, 1)) for size in (2, 4, 8, 16, 32)))
    assert trial.job.options.samples == (1, 2, 8, 32)


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("probe: {secs: 3}", "probe.secs = 3: unknown key; did you mean 'seconds'?"),
        ("probe: {seconds: 0}", "probe.seconds = 0: must be at least 1"),
        ("probe: often", "probe = 'often': "),
    ],
)
def test_a_mistake_in_the_section_is_named(distbench, tmp_path, section, told):
    done = distbench("plan", str(write_suite(tmp_path, f"{SUITE}{section}\n", "mine.yaml")))
    assert done.returncode == 2
    assert told in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--world-sizes", "0"), "--world-sizes 0: world_sizes[0] = 0"),
        (("--set", "probe.secs=3"), "--set probe.secs=3: probe.secs = 3: unknown key"),
        (("nothing.yaml",), "nothing.yaml: no such file"),
    ],
)
def test_a_mistake_in_an_option_names_the_option(distbench, words, told):
    done = distbench("probe", *words)
    assert done.returncode == 2
    assert told in done.stderr


def shown(*rows: dict[str, Any]) -> Any:
    probed = trials(case())[0].case
    record = replace(measured(probed), job=job_of("probe"), tables={"machine_rates": list(rows)})
    return all_views()["rates"].table(RunAnalysis(info(case()), [record]))


def test_a_rate_that_is_not_identified_has_no_number_but_a_reason():
    place = {"rank": 0, "rate": "collective_in_step", "op": "all_reduce", "group": "all", "samples": 1}
    known = {**place, "bytes": 4096, "seconds": 0.002, "relative_sd": 0.3, "repetitions": 9, "reason": ""}
    noise = {**known, "bytes": 4 << 20, "seconds": -0.001, "reason": "not identified: 5 of 9"}
    table = shown(known, noise)
    assert [row["seconds"] for row in table.records()] == [0.002, None]
    text = table.to_text(80)
    assert "all_reduce after each layer" in text
    assert "not identified: 5 of 9 (all_reduce of 4.00 MiB)" in " ".join(text.split())


def test_a_failed_probe_says_why():
    broken = replace(failed(trials(case())[0].case), job=job_of("probe"))
    table = all_views()["rates"].table(RunAnalysis(info(case()), [broken]))
    assert not table.rows
    assert broken.case.name in table.notes[0]
    assert broken.reason.split("\n")[0] in table.notes[0]


def test_programs_get_the_rates_of_each_probe_and_the_cases_they_are_about():
    (trial,) = trials(case("ddp"), case("fsdp"))
    row = {"rank": 0, "rate": "copy", "bytes": 100, "seconds": 0.5, "reason": ""}
    record = replace(measured(trial.case), job=trial.job, tables={"machine_rates": [row]})
    (told,) = run_json(RunAnalysis(info(case()), [record]))["rates"]
    assert told["cases"] == [case("ddp").id, case("fsdp").id]
    assert (told["case"], told["status"], told["world_size"]) == (trial.case.name, "measured", 2)
    assert [each["seconds"] for each in told["rates"]] == [0.5]
