"""The page and the findings of a measured script: there is nothing to choose, and no suite to change."""

from pathlib import Path

from distbench.analysis.run import RunAnalysis
from distbench.analysis.wording.findings import all_findings
from distbench.record.run_folder import Run
from distbench.report.page import render
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
