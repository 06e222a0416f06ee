"""A gate's result in the formats of others: Markdown, JUnit XML, OpenMetrics, GitHub's annotations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from distbench.core.text import one_line, plain
from distbench.gate.verdicts import FAILING, CaseVerdict, Result
from distbench.gate.view import CAPTION, case_sentences, headline, sentences, sheet
from distbench.tables.markdown_text import bullets, escaped, folded

# characters that XML 1.0 can't represent
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_SKIPPED = ("inconclusive", "incomparable")
_ANNOTATED = {**dict.fromkeys(_SKIPPED, "warning"), "improved": "notice"}
_RATIO = "Cost of the candidate over that of the baseline; above 1 is worse."


def markdown(result: Result) -> str:
    """The verdict, what did not pass and why, and all cases in a fold, for a pull request comment."""
    arms = f"{escaped(result.candidate)} vs. {escaped(result.baseline)}"
    blocks = [
        f"## distbench gate: {escaped(result.suite)}",
        f"**{escaped(headline(result))}**: {arms}",
        bullets(sentences(result)),
        folded(f"All {len(result.cases)} cases", sheet(result).as_markdown()),
        f"<sub>{escaped(CAPTION)}</sub>",
        markdown(result.since) if result.since else "",
    ]
    return "\n\n".join(block for block in blocks if block)


def junit(result: Result) -> str:
    """One test per case, for GitHub, GitLab and Jenkins; skipped if inconclusive or incomparable."""
    root = ElementTree.Element("testsuites")
    for each in (result, result.since):
        if each:
            root.append(_suite(each))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(result: Result) -> ElementTree.Element:
    failed = sum(case.word in FAILING for case in result.cases)
    skipped = sum(case.word in _SKIPPED for case in result.cases) + len(result.skipped)
    suite = ElementTree.Element(
        "testsuite",
        name=_name(f"distbench gate {result.suite}"),
        tests=str(len(result.cases) + len(result.skipped)),
        failures=str(failed),
        skipped=str(skipped),
        errors="0",
        time=f"{result.minutes * 60:.1f}",
    )
    for case in result.cases:
        _case(suite, case, result)
    for name, why in result.skipped.items():
        test = ElementTree.SubElement(suite, "testcase", classname=_name(result.suite), name=_name(name))
        ElementTree.SubElement(test, "skipped", message=_clean(why))
    ElementTree.SubElement(suite, "system-out").text = _clean(headline(result))
    return suite


def _case(suite: ElementTree.Element, case: CaseVerdict, result: Result) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=_name(result.suite), name=_name(case.case))
    if case.word in FAILING:
        failure = ElementTree.SubElement(test, "failure", type=case.word, message=_clean(case.said))
        failure.text = _clean("\n".join(case_sentences(case)))
    elif case.word in _SKIPPED:
        ElementTree.SubElement(test, "skipped", message=_clean(f"{case.word}: {case.said}"))


def _clean(text: str) -> str:
    return _NO_XML.sub("?", plain(text))


def _name(text: str) -> str:
    return _clean(one_line(text))


def openmetrics(result: Result) -> str:
    """Gauge ``distbench_ratio`` per gated number of each case (openmetrics.io, 1.0), as GitLab reads it."""
    lines = ["# TYPE distbench_ratio gauge", f"# HELP distbench_ratio {_RATIO}"]
    for case in result.cases:
        for finding in case.findings:
            if finding.ratio is not None:
                labels = {"case": case.case, "metric": finding.metric, "verdict": finding.word}
                pairs = ",".join(f'{key}="{_label(value)}"' for key, value in labels.items())
                lines.append(f"distbench_ratio{{{pairs}}} {finding.ratio:.6g}")
    return "\n".join([*lines, "# EOF", ""])


def _label(value: str) -> str:
    return one_line(value).replace("\\", "\\\\").replace('"', '\\"')


def github(result: Result) -> Iterator[str]:
    """Yield a workflow command for each case with anything but a plain pass (docs.github.com/actions)."""
    for case in result.cases:
        level = "error" if case.word in FAILING else _ANNOTATED.get(case.word)
        if level:
            message = "\n".join(case_sentences(case)) or case.said
            title = _property(f"distbench: {case.word}: {one_line(case.case)}")
            yield f"::{level} title={title}::{_data(message)}"
    if result.since:
        yield from github(result.since)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
