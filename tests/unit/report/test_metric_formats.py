"""Numbers of a run in the formats of other tools, read back by their rules."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from distbench.analysis.run import RunAnalysis
from distbench.cli import main
from distbench.report.metric_formats import METRIC_FORMATS, metric_absences
from support.records import COLUMNS, case, failed, info, measured

FROZEN = Path(__file__).parents[2] / "frozen" / "run"
TIMED = {**COLUMNS, "step_s": {"unit": "s", "better": "lower", "over_ranks": "max", "doc": "Step."}}
NOISY, GONE = case("fsdp"), case("zero3")
# https://bencher.dev/bmf.json
BENCHER = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {name: {"type": "number"} for name in ("value", "lower_value", "upper_value")},
            "required": ["value"],
        },
    },
}


@pytest.fixture(scope="module")
def rows():
    """A clean case, one measured on a noisy machine, and one that failed."""
    records = [
        *(
            replace(measured(case(), 1000 + 10 * i, round_=i, step_s=0.2 + 0.01 * i), columns=TIMED)
            for i in range(3)
        ),
        replace(measured(NOISY, step_s=0.3), degraded="other processes took 40% of the CPU time"),
        failed(GONE),
    ]
    return RunAnalysis(info(case(), NOISY, GONE), records).cases


def numbers(text: str) -> dict[str, dict[str, float]]:
    return {
        name: {column: each["value"] for column, each in of.items()} for name, of in json.loads(text).items()
    }


def test_times_of_a_noisy_case_are_left_out_and_exact_numbers_are_not(rows):
    found = numbers(METRIC_FORMATS["bencher"]("tiny", rows))
    assert found.keys() == {case().name, NOISY.name}
    assert found[NOISY.name] == {"memory_peak": 1e6, "final_loss": 2.5}
    assert found[case().name].keys() == {"tokens_per_s", "step_s", "memory_peak", "final_loss"}
    by_name = {row.case.name: metric_absences(row) for row in rows}
    assert "took 40%" in by_name[NOISY.name]["step_s"]
    assert set(by_name[case().name]) == {"comm_wire_bytes", "comm_calls"}


def test_each_number_is_that_of_the_tables(rows):
    (clean, *_) = rows
    texts = {name: make("tiny", rows) for name, make in METRIC_FORMATS.items()}
    bencher = json.loads(texts["bencher"])
    jsonschema.validate(bencher, BENCHER)
    pace = bencher[clean.case.name]["tokens_per_s"]
    assert pace["value"] == clean.values["tokens_per_s"].value
    assert (pace["lower_value"], pace["upper_value"]) == clean.values["tokens_per_s"].bounds
    entries = {each["name"]: each for each in json.loads(texts["github-action-benchmark"])}
    step = entries[f"tiny: {clean.case.name}: step_s"]
    assert (step["unit"], step["value"]) == ("s", clean.values["step_s"].value)
    # the tool takes all numbers for costs
    assert not [name for name in entries if name.endswith(("tokens_per_s", "final_loss"))]
    samples = {
        (sample.name, sample.labels["case"]): sample.value
        for family in text_string_to_metric_families(texts["openmetrics"])
        for sample in family.samples
    }
    assert samples["distbench_tokens_per_s", clean.case.name] == pace["value"]
    assert samples["distbench_memory_peak", NOISY.name] == 1e6
    assert len(samples) == 6


def test_a_hostile_name_breaks_no_format():
    hostile = case("ddp", name='a"b\\c\n# EOF\x1b[31m')
    rows = RunAnalysis(info(hostile), [measured(hostile, step_s=0.1)]).cases
    texts = {name: make('s"\n', rows) for name, make in METRIC_FORMATS.items()}
    families = list(text_string_to_metric_families(texts["openmetrics"]))
    assert {sample.labels["case"] for family in families for sample in family.samples} == {'a"b\\c'}
    assert json.loads(texts["github-action-benchmark"]) and json.loads(texts["bencher"])
    assert not any("\x1b" in text for text in texts.values())


@pytest.mark.parametrize("to", METRIC_FORMATS)
def test_a_stored_run_is_printed_as_text(to, capsys):
    assert main(["export", str(FROZEN), "--to", to]) == 0
    printed = capsys.readouterr()
    assert "ddp" in printed.out
    assert printed.out.endswith("# EOF\n") if to == "openmetrics" else json.loads(printed.out)


def test_a_folder_for_text_is_refused(capsys, tmp_path):
    assert main(["export", str(FROZEN), "--to", "bencher", "--into", str(tmp_path)]) == 2
    assert "--to bencher writes to standard output" in capsys.readouterr().err
