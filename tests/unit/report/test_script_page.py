"""The page and the findings of a measured script: there is nothing to choose, and no suite to change."""

from pathlib import Path

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import all_findings
from distbench.api.traces import trace
from distbench.record.run_folder import Run
from distbench.report.page import render
from support.chrome_traces import ChromeTrace
from support.script_runs import script_run

SAMPLE = Path(__file__).parents[3] / "reports" / "sample"
CHOICES = ("Change the constraints", "Which strategy, and why", "picker-data")


def test_a_page_of_one_script_offers_no_choice(tmp_path):
    page = render(RunAnalysis.read(Run(script_run(tmp_path))))
    assert "script <bdi>train</bdi>" in page
    assert "train.py trains with zero (stage: 2) on 2 ranks" in page
    of_suite = render(RunAnalysis.read(Run(SAMPLE)))
    for words in CHOICES:
        assert words not in page
        assert words in of_suite


def test_advice_names_the_options_of_measure(tmp_path):
    found = all_findings(RunAnalysis.read(Run(script_run(tmp_path))))
    assert [each for each in found if "increase --warmup" in each], found
    assert not [each for each in found if "measure." in each]


def test_a_page_of_traces_tells_the_causes_of_idle_time_and_offers_no_choice(tmp_path):
    made = ChromeTrace(rank=0)
    for step in (0, 1):
        # the device is idle for the larger part of a step
        begin = 50.0 * step
        made.step(step, begin, begin + 49).op("aten::mm", begin + 0.5, begin + 1)
        made.kernel("gemm", begin + 0.6, begin + 1, begin + 21)
    file = made.kernel("last", 89, 99, 101).write(tmp_path / "rank0.json")
    run = RunAnalysis.read(Run(trace(file).store(tmp_path / "runs").folder))
    page = render(run)
    assert "idle: host late" in page
    # of which a limit of the step knows only the sum
    assert "Host-bound" not in " ".join(all_findings(run))
    for words in CHOICES:
        assert words not in page
