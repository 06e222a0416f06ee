"""A gate's verdict in every form it is told in, whatever names it has to tell."""

import json
from dataclasses import replace
from importlib import resources
from xml.etree import ElementTree

import jsonschema
import pytest
from markdown_it import MarkdownIt
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from distbench.gate import outputs, view
from distbench.gate.sequential_test import PairRule, detectable_loss, gate_power
from distbench.gate.verdicts import CaseVerdict, GateResult, GateVerdict, MetricFinding
from distbench.record.run_folder import write_json
from support import records

HOSTILE = [
    "</testcase><testcase>",
    "]]><!--",
    "nul\x00 and \x1b[31mred\x1b[0m\x1b]0;title\x07",
    "turned \u202eround\u200f",
    "first\nsecond ::error::line",
    "::set-output name=x::y",
    "  ::add-mask::y",
    "##[stop-commands]token",
    "##vso[task.complete result=Succeeded;]",
    "100%0A::error::x%25",
    "title: a, b::c",
    "| table | <script>alert(1)</script> @someone [link](https://example.com)",
    'quote " and \\ and \\n',
    "half \ud800",
    "long" * 2500,
]
COUNTED = {"word": "pass", "said": "unchanged", "limit": 0.0, "ratio": 1.0, "pairs": 5}


def finding(word: GateVerdict, said: str = "as measured", metric: str = "tokens_per_s") -> MetricFinding:
    return MetricFinding(metric, word, said, 0.03, 1.05, 1.02, 1.08, 8, 1000.0, 950.0, "tokens/s", 0, 0.02)


def verdict(
    word: GateVerdict, name: str = "ddp/ws2", said: str = "as measured", cause: str = ""
) -> CaseVerdict:
    counted = MetricFinding("comm_bytes", **COUNTED)
    return CaseVerdict(name, "ddp", 2, (finding(word, said), counted), cause, ("a note",), 0.5)


def result(*cases: CaseVerdict, **changes) -> GateResult:
    told = {
        "gate_id": "abcd1234",
        "suite": "tiny",
        "baseline": "main",
        "candidate": "the suite without changes",
    }
    return GateResult(**{**told, "cases": cases, "minutes": 12.5, **changes})


def all_hostile(text: str) -> GateResult:
    cases = [verdict(word, text, text, text) for word in ("regressed", "inconclusive", "improved", "pass")]
    return result(
        *cases,
        suite=text,
        baseline=text,
        candidate=text,
        environment={"torch": (text, text)},
        skipped={text: text},
        folder=text,
    )


# exit codes


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["pass"], 0),
        (["pass", "improved"], 0),
        (["improved", "regressed"], 1),
        (["missing"], 1),
        (["invalid"], 1),
        (["broken", "incomparable"], 1),
        (["pass", "incomparable"], 5),
        (["inconclusive", "incomparable"], 5),
        (["pass", "inconclusive"], 3),
        ([], 5),
    ],
)
def test_the_exit_code_is_that_of_the_gravest_case(words, code):
    assert result(*map(verdict, words)).exit_code() == code


@pytest.mark.parametrize(("as_", "code"), [("tell", 3), ("pass", 0), ("fail", 1)])
def test_what_is_inconclusive_counts_as_is_said(as_, code):
    assert result(verdict("pass"), verdict("inconclusive")).exit_code(as_) == code
    assert result(verdict("regressed"), verdict("inconclusive")).exit_code(as_) == 1
    assert result(verdict("incomparable"), verdict("inconclusive")).exit_code(as_) == 5


def test_a_case_is_as_grave_as_its_gravest_number_and_says_why():
    both = (finding("regressed", "much slower"), finding("missing", "gone", "peak_memory"))
    case = CaseVerdict("ddp/ws2", "ddp", 2, (*both, finding("pass", "fine", "efficiency")))
    assert (case.word, case.said) == ("missing", "peak_memory: gone")
    assert CaseVerdict("ddp/ws2", "ddp", 2, ()).word == "incomparable"


def test_below_the_table_stands_the_largest_loss_that_may_hide_and_the_one_that_is_stopped():
    wide, narrow = (replace(finding("pass"), low=0.99, high=high) for high in (1.08, 1.01))
    memory = replace(finding("pass", metric="peak_memory"), low=0.99, high=1.005)
    cases = [CaseVerdict(name, "ddp", 2, (pace, memory)) for name, pace in (("a", wide), ("b", narrow))]
    (line,) = (line for line in view.result_sentences(result(*cases)) if line.startswith("Cases that pass"))
    # at a spread of 2 % and 8 pairs
    stops = detectable_loss(0.02, PairRule(0.03, 8, 8))
    bounds = (
        "Cases that pass may still have up to 8.0% more time per step (a), 0.5% more memory (a) (97.5% "
        "bounds)"
    )
    assert line == f"{bounds}; this gate detects a slowdown of {stops:.1%} in 90% of runs."
    assert gate_power(0.02, stops, PairRule(0.03, 8, 8)) == pytest.approx(0.9)
    unchanged = CaseVerdict("a", "ddp", 2, (replace(finding("pass"), low=1.0, high=1.0),))
    assert not [line for line in view.result_sentences(result(unchanged)) if "pass" in line]


def test_what_crept_in_since_an_older_baseline_stands_in_every_form():
    told = result(verdict("pass"), since=result(verdict("regressed"), baseline="v1.0"))
    assert [suite.get("failures") for suite in ElementTree.fromstring(outputs.to_junit(told))] == ["0", "1"]
    assert any(line.startswith("::error ") for line in outputs.github_annotations(told))
    assert "vs. v1.0" in view.result_text(told, 120) and "vs. v1.0" in outputs.to_markdown(told)


# JSON


def schema() -> dict:
    return json.loads(resources.files("distbench.gate").joinpath("result.schema.json").read_text())


def test_the_json_is_what_its_schema_says(tmp_path):
    jsonschema.Draft202012Validator.check_schema(schema())
    told = [
        result(),
        result(*map(verdict, ("pass", "broken"))),
        all_hostile(HOSTILE[2]),
        result(
            CaseVerdict(
                "ddp/ws2", "ddp", 2, (MetricFinding("trial", "broken", ""),), first=(finding("pass"),)
            )
        ),
        result(verdict("pass"), since=result(verdict("regressed"), baseline="v1.0")),
    ]
    for each in told:
        write_json(tmp_path / "gate.json", each.to_json())
        jsonschema.validate(json.loads((tmp_path / "gate.json").read_text()), schema())


def test_the_schema_refuses_what_it_does_not_say():
    plain = json.loads(json.dumps(result(verdict("pass")).to_json()))
    for wrong in ({"format": 2}, {"word": "fine"}, {"news": 1}, {"cases": [{}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain, **wrong}, schema())


@pytest.mark.parametrize("text", HOSTILE)
def test_json_tells_names_as_they_are(text, tmp_path):
    write_json(tmp_path / "gate.json", all_hostile(text).to_json())
    read = json.loads((tmp_path / "gate.json").read_text())
    assert (read["suite"], read["cases"][0]["case"]) == (text, text)


# JUnit


def test_junit_has_a_test_for_each_case():
    cases = [verdict(word, f"case{i}") for i, word in enumerate(("pass", "improved", "regressed", "missing"))]
    cases += [verdict("inconclusive", "case4"), verdict("incomparable", "case5")]
    (suite,) = ElementTree.fromstring(outputs.to_junit(result(*cases, skipped={"fsdp": "needs a GPU"})))
    assert suite.attrib == {
        "name": "distbench gate tiny",
        "tests": "7",
        "failures": "2",
        "skipped": "3",
        "errors": "0",
        "time": "750.0",
    }
    tests = {test.get("name"): test for test in suite.iter("testcase")}
    assert [*tests] == ["case0", "case1", "case2", "case3", "case4", "case5", "fsdp"]
    failure = tests["case2"].find("failure")
    assert (failure.get("type"), failure.get("message")) == ("regressed", "tokens_per_s: as measured")
    assert "case2: tokens_per_s regressed: as measured." in failure.text
    assert tests["case4"].find("skipped").get("message") == "inconclusive: tokens_per_s: as measured"
    assert tests["fsdp"].find("skipped").get("message") == "needs a GPU"
    assert [child.tag for child in tests["case0"]] == [child.tag for child in tests["case1"]] == []


@pytest.mark.parametrize("text", [*HOSTILE, "not in XML: \ufffe"])
def test_junit_of_any_name_is_xml_with_as_many_tests(text):
    written = outputs.to_junit(all_hostile(text)).encode()
    (suite,) = ElementTree.fromstring(written)
    assert len(suite.findall("testcase")) == int(suite.get("tests")) == 5
    assert len(suite.findall("testcase/failure")) == int(suite.get("failures")) == 1
    assert all(len(test.get("name")) <= 300 for test in suite.iter("testcase"))


# annotations of GitHub


def test_github_annotates_what_did_not_pass():
    told = result(verdict("pass"), verdict("improved"), verdict("inconclusive"), verdict("broken"))
    assert [line.split(" ")[0] for line in outputs.github_annotations(told)] == [
        "::notice",
        "::warning",
        "::error",
    ]
    (line,) = outputs.github_annotations(result(verdict("regressed", cause="an extra collective")))
    title, _, message = line.removeprefix("::error title=").partition("::")
    assert title == "distbench%3A regressed%3A ddp/ws2"
    assert message.split("%0A") == [
        "ddp/ws2: tokens_per_s regressed: as measured.",
        "ddp/ws2: cause: an extra collective.",
        "ddp/ws2: a note.",
    ]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_gives_github_a_command(text):
    lines = list(outputs.github_annotations(all_hostile(text)))
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::notice"]
    for line in lines:
        assert line.isprintable()
        properties = line.removeprefix("::").partition("::")[0]
        assert properties.count("=") <= 1 + text.count("=")
        assert "," not in properties


@pytest.mark.parametrize("text", HOSTILE)
def test_github_reads_the_sentences_as_they_were_written(text):
    told = all_hostile(text)
    message = next(outputs.github_annotations(told)).removeprefix("::").partition("::")[2]
    # as the runner does: the percent sign last
    read = message.replace("%0A", "\n").replace("%0D", "\r").replace("%25", "%")
    assert read.split("\n") == view.case_sentences(told.cases[0])


# the terminal and Markdown


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_acts_on_a_terminal_or_a_runner(text, width):
    told = view.result_text(all_hostile(text), width)
    assert told and all(line.isprintable() for line in told.splitlines())
    assert not any(line.lstrip().startswith("::") for line in told.splitlines())
    assert not any(marker in told for marker in ("##[", "##vso["))


@pytest.mark.parametrize("text", HOSTILE)
def test_no_name_makes_markup(text):
    page = outputs.to_markdown(all_hostile(text))
    assert "<script" not in page
    html = MarkdownIt("js-default").render(page)
    assert "<a " not in html and "<script" not in html
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 1 + 4
    assert {row.count("|") for row in rows} == {8}


def test_a_result_is_told_in_a_table_and_sentences():
    told = view.result_text(
        result(verdict("regressed", cause="an extra collective"), verdict("pass", "zero3/ws2")), 110
    )
    lines = told.splitlines()
    assert lines[0].startswith("tiny: ")
    assert lines[0].endswith(" main")
    assert any(line.startswith("ddp/ws2") and "+5.0% (+2.0% to +8.0%) !" in line for line in lines)
    assert "ddp/ws2: tokens_per_s regressed: as measured." in lines
    assert not any(line.startswith("zero3/ws2:") and "tokens_per_s" in line for line in lines)
    assert lines[-1] == "regressed: 1 regressed, 1 pass (12.5 minutes)"
    stopped = view.result_headline(result(verdict("pass"), stopped="signal"))
    assert stopped == "pass: 1 pass (12.5 minutes); interrupted"
    assert view.result_headline(result()).startswith("incomparable: ")


# OpenMetrics


def gauges(told: GateResult) -> list:
    (family,) = text_string_to_metric_families(outputs.to_openmetrics(told))
    assert (family.name, family.type) == ("distbench_ratio", "gauge")
    return family.samples


def test_openmetrics_tells_the_ratio_of_each_number():
    no_ratio = CaseVerdict("broken/ws2", "ddp", 2, (MetricFinding("trial", "broken", "ended"),))
    samples = gauges(result(verdict("regressed"), no_ratio))
    assert [(sample.labels, sample.value) for sample in samples] == [
        ({"case": "ddp/ws2", "metric": "tokens_per_s", "verdict": "regressed"}, 1.05),
        ({"case": "ddp/ws2", "metric": "comm_bytes", "verdict": "pass"}, 1.0),
    ]
    assert gauges(result()) == []


@pytest.mark.parametrize("text", HOSTILE)
def test_any_name_is_a_label_of_openmetrics(text):
    samples = gauges(result(verdict("regressed", text)))
    assert len(samples) == 2
    assert all(sample.labels["case"].isprintable() for sample in samples)


def test_a_number_beyond_all_sense_is_short():
    huge = MetricFinding("tokens_per_s", "regressed", "slower", 0.03, 1e300, 1e-300, 1e300, 2)
    told = view.result_text(result(CaseVerdict(records.case().name, "ddp", 2, (huge,))), 110)
    assert max(map(len, told.splitlines())) <= 120
