"""Render gate results as Markdown, JUnit XML, OpenMetrics and GitHub annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from distbench.core.text import escape_openmetrics_label, one_line, strip_control_characters
from distbench.gate.verdicts import FAILING_VERDICTS, CaseVerdict, GateResult
from distbench.gate.view import CAPTION, case_sentences, result_headline, result_sentences, result_table
from distbench.tables.foreign_text import bullets, details, escape_markdown

# characters that XML 1.0 can't represent
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("inconclusive", "incomparable")
_ANNOTATED = {**dict.fromkeys(_SKIPPED, "warning"), "improved": "notice"}
_RATIO = "Cost of the candidate over that of the baseline; above 1 is worse."


def to_markdown(result: GateResult) -> str:
    """A pull request comment: the verdict, cases that did not pass and why, and all cases in a fold."""
    arms = f"{escape_markdown(result.candidate)} vs. {escape_markdown(result.baseline)}"
    blocks = [
        f"## distbench gate: {escape_markdown(result.suite)}",
        f"**{escape_markdown(result_headline(result))}**: {arms}",
        bullets(result_sentences(result)),
        details(f"All {len(result.cases)} cases", result_table(result).to_markdown()),
        f"<sub>{escape_markdown(CAPTION)}</sub>",
        to_markdown(result.since) if result.since else "",
    ]
    return "\n\n".join(block for block in blocks if block)


def to_junit(result: GateResult) -> str:
    """One test per case, for GitHub, GitLab and Jenkins; skipped if inconclusive or incomparable."""
    root = ElementTree.Element("testsuites")
    for each in (result, result.since):
        if each:
            root.append(_junit_suite(each))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_suite(result: GateResult) -> ElementTree.Element:
    failed = sum(case.word in FAILING_VERDICTS for case in result.cases)
    skipped = sum(case.word in _SKIPPED for case in result.cases) + len(result.skipped)
    suite = ElementTree.Element(
        "testsuite",
        name=_xml_name(f"distbench gate {result.suite}"),
        tests=str(len(result.cases) + len(result.skipped)),
        failures=str(failed),
        skipped=str(skipped),
        errors="0",
        time=f"{result.minutes * 60:.1f}",
    )
    for case in result.cases:
        _junit_case(suite, case, result)
    for name, why in result.skipped.items():
        test = ElementTree.SubElement(
            suite, "testcase", classname=_xml_name(result.suite), name=_xml_name(name)
        )
        ElementTree.SubElement(test, "skipped", message=_xml_text(why))
    ElementTree.SubElement(suite, "system-out").text = _xml_text(result_headline(result))
    return suite


def _junit_case(suite: ElementTree.Element, case: CaseVerdict, result: GateResult) -> None:
    test = ElementTree.SubElement(
        suite, "testcase", classname=_xml_name(result.suite), name=_xml_name(case.case)
    )
    if case.word in FAILING_VERDICTS:
        failure = ElementTree.SubElement(test, "failure", type=case.word, message=_xml_text(case.said))
        failure.text = _xml_text("\n".join(case_sentences(case)))
    elif case.word in _SKIPPED:
        ElementTree.SubElement(test, "skipped", message=_xml_text(f"{case.word}: {case.said}"))


def _xml_text(text: str) -> str:
    return _NO_XML.sub("?", strip_control_characters(text))


def _xml_name(text: str) -> str:
    return _xml_text(one_line(text))


def to_openmetrics(result: GateResult) -> str:
    """Gauge ``distbench_ratio`` per gated number of each case (openmetrics.io, 1.0), as GitLab reads it."""
    lines = ["# TYPE distbench_ratio gauge", f"# HELP distbench_ratio {_RATIO}"]
    for case in result.cases:
        for finding in case.findings:
            if finding.ratio is not None:
                labels = {"case": case.case, "metric": finding.metric, "verdict": finding.word}
                pairs = ",".join(
                    f'{key}="{escape_openmetrics_label(value)}"' for key, value in labels.items()
                )
                lines.append(f"distbench_ratio{{{pairs}}} {finding.ratio:.6g}")
    return "\n".join([*lines, "# EOF", ""])


def github_annotations(result: GateResult) -> Iterator[str]:
    """Yield a workflow command for each case with anything but a plain pass.

    See docs.github.com/actions.
    """
    for case in result.cases:
        level = "error" if case.word in FAILING_VERDICTS else _ANNOTATED.get(case.word)
        if level:
            message = "\n".join(case_sentences(case)) or case.said
            title = _escape_property(f"distbench: {case.word}: {one_line(case.case)}")
            yield f"::{level} title={title}::{_escape_data(message)}"
    if result.since:
        yield from github_annotations(result.since)


def _escape_data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_data(text).replace(":", "%3A").replace(",", "%2C")
