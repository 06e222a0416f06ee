"""A gate against a stored run: what the machine explains stands beside the verdict, and changes none."""

import json
import math
import random
from dataclasses import replace
from importlib import resources

import jsonschema
import pytest

from distbench.analysis.history import HistoryRun
from distbench.analysis.run import RunAnalysis
from distbench.core.case import Batch
from distbench.gate.outputs import to_markdown
from distbench.gate.stored_baseline import judge_stored
from distbench.gate.verdicts import GateResult
from distbench.gate.view import result_text
from distbench.suite.gate import GateRules
from support import records
from support.probes import probe_of, probe_rows, slowed

DDP = records.case("ddp", batch=Batch(8, 4, 1))
MACHINE = ("matmul", "copy", "collective")
SCHEMA = json.loads(resources.files("distbench.gate").joinpath("result.schema.json").read_text())


def run(factor: float, rows=None, seed: int = 0) -> RunAnalysis:
    """Run of three trials with steps of about *factor* seconds, and a probe of *rows* if there are any."""
    random_ = random.Random(seed)
    seconds = [factor * math.exp(random_.gauss(0, 0.002)) for _ in range(3)]
    trials = [
        replace(records.measured(DDP, round_=i), values={**records.measured(DDP).values, "step_s": each})
        for i, each in enumerate(seconds)
    ]
    info = replace(
        records.info(DDP), machine={"cpu": "made up"}, suite={"measure": {"warmup": 1, "steps": 9}}
    )
    return RunAnalysis(info, [*([probe_of(DDP, rows)] if rows else []), *trials])


def gated(baseline: RunAnalysis, candidate: RunAnalysis, earlier: int = 8) -> GateResult:
    stored = [HistoryRun.of(run(1, seed=seed)) for seed in range(1, earlier + 1)]
    result = judge_stored(baseline, candidate, stored, GateRules(), "stored")
    jsonschema.validate(json.loads(json.dumps(result.to_json())), SCHEMA)
    return result


def surfaces(result: GateResult) -> list[str]:
    return [" ".join(text.split()) for text in (result_text(result, 200), to_markdown(result))]


def test_what_the_machine_explains_stands_beside_the_verdict():
    result = gated(run(1, probe_rows()), run(2, slowed(probe_rows(), 2, *MACHINE)))
    split = result.to_json()["cases"][0]["split"]
    assert split["machine"]["value"] == pytest.approx(2)
    assert split["rest"]["low"] < 1 < split["rest"]["high"]
    for text in surfaces(result):
        assert "of +100" in text or "of +99" in text
        assert "time per step the machine explains +100.0% (" in text
        assert "may be noise" in text


def test_slower_code_is_not_the_machines_although_the_passes_of_the_probe_are_slower_too():
    code = slowed(probe_rows(), 1.5, "forward_backward", "update", "collective_in_step")
    result = gated(run(1, probe_rows()), run(1.5, code))
    split = result.to_json()["cases"][0]["split"]
    assert split["machine"]["value"] == pytest.approx(1)
    assert 1.2 < split["rest"]["low"] < 1.5 < split["rest"]["high"]
    for text in surfaces(result):
        assert " comes from the code or from what the probe does not measure" in text


def test_without_two_probes_nothing_is_said():
    result = gated(run(1, probe_rows()), run(2))
    assert result.to_json()["cases"][0]["split"] is None
    assert all("the machine explains" not in text for text in surfaces(result))


def test_probes_that_tell_nothing_have_a_reason():
    old = [row for row in probe_rows() if row["rate"] != "copy"]
    result = gated(run(1, old), run(2, probe_rows()))
    assert result.to_json()["cases"][0]["split"]["machine"] is None
    for text in surfaces(result):
        assert "attributed to machine or code: the probe of the first run has no rate copy" in text


def test_an_unknown_variance_of_runs_leaves_the_rest_without_an_interval():
    split = gated(run(1, probe_rows()), run(2, probe_rows()), earlier=0).to_json()["cases"][0]["split"]
    assert split["rest"]["value"] == pytest.approx(2, rel=0.01)
    assert split["rest"]["low"] is None


@pytest.mark.parametrize("factor", [1, 1.5])
@pytest.mark.parametrize("rates", [MACHINE, ("forward_backward",)], ids=["machine", "code"])
def test_no_probe_changes_a_verdict_or_an_exit_code(factor, rates):
    probed = gated(run(1, probe_rows()), run(factor, slowed(probe_rows(), factor, *rates)))
    alone = gated(run(1), run(factor))
    assert probed.exit_code() == alone.exit_code()
    assert [each.findings for each in probed.cases] == [each.findings for each in alone.cases]
