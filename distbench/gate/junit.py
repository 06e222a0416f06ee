"""A gate's result as JUnit XML, which GitHub, GitLab and Jenkins show: one test a case."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from distbench.analysis.text import one_line, plain
from distbench.gate.verdicts import FAILING, CaseVerdict, Result
from distbench.gate.view import case_sentences, headline

# what XML 1.0 has no way to write
_NO_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(result: Result) -> str:
    """Return the XML; inconclusive and incomparable cases are skipped tests, and say why."""
    failed = sum(case.word in FAILING for case in result.cases)
    skipped = sum(_is_skipped(case) for case in result.cases) + len(result.skipped)
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
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, case: CaseVerdict, result: Result) -> None:
    test = ElementTree.SubElement(suite, "testcase", classname=_name(result.suite), name=_name(case.case))
    said = "\n".join(case_sentences(case))
    if case.word in FAILING:
        failure = ElementTree.SubElement(test, "failure", type=case.word, message=_clean(case.said))
        failure.text = _clean(said)
    elif _is_skipped(case):
        ElementTree.SubElement(test, "skipped", message=_clean(f"{case.word}: {case.said}"))


def _is_skipped(case: CaseVerdict) -> bool:
    return case.word in ("inconclusive", "incomparable")


def _clean(told: str) -> str:
    return _NO_XML.sub("?", plain(told))


def _name(told: str) -> str:
    return _clean(one_line(told))
