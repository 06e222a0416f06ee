"""A run in Markdown, read by a parser of Markdown."""

import re

import pytest
from markdown_it import MarkdownIt

from distbench.cli import main
from distbench.record import Record
from distbench.report.overview import run_markdown
from distbench.tables.foreign_text import escape_markdown
from support.records import case, failed, measured, run_of, stored_run, unsupported

DDP, FSDP = case("ddp"), case("fsdp")
HOSTILE = (
    "a|b @everyone #1 !2 `x` *y* [z](https://example.org) www.example.org "
    "<img src=x onerror=alert(1)> </details> $x$ ~label \\| &lt;"
)


def page(*records: Record, name: str = "tiny") -> str:
    return run_markdown(run_of(*records, suite_name=name))


def html(*records: Record, name: str = "tiny") -> str:
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    return parser.render(page(*records, name=name))


def test_the_answer_comes_first_and_the_rest_is_folded():
    text = html(measured(DDP, 1000), measured(FSDP, 900), failed(case("zero2")))
    assert text.index("<strong>Train with ddp on 2 devices: 1,000") < text.index("<details>")
    assert re.findall(r"<summary>(.*?)</summary>", text) == [
        "All 3 cases",
        "Key findings",
        "Losses",
        "Failed or unsupported here",
    ]
    assert text.count("<details>") == text.count("</details>")


def test_every_case_has_a_row_with_as_many_cells_as_the_head():
    text = html(measured(DDP), measured(case(HOSTILE)), failed(FSDP), unsupported(case("dp")))
    rows = re.findall(r"<tr>(.*?)</tr>", text, re.DOTALL)
    assert [len(re.findall("<t[hd]", row)) for row in rows] == [7] * 6


def test_a_foreign_name_makes_no_markup_and_calls_nobody():
    text = html(measured(case(HOSTILE)), failed(FSDP, HOSTILE), name=HOSTILE)
    for tag in ("<a ", "<img", "<em>", "<code>"):
        assert tag not in text
    raw = page(measured(case(HOSTILE)), failed(FSDP, HOSTILE), name=HOSTILE)
    # sites look for these in the text as it stands
    for link in ("@everyone", "#1 ", "://", "www.", "$x$", "~label"):
        assert link not in raw
    assert "a|b @everyone #1 !2" in text.replace("&#33;", "!")


def test_a_run_without_cases_says_so():
    assert "No recommendation: the run has no cases." in html()


def test_show_prints_it_and_takes_one_form_at_a_time(tmp_path, capsys):
    run = stored_run(tmp_path, measured(DDP))
    assert main(["show", str(run.folder), "--md"]) == 0
    assert capsys.readouterr().out.startswith("## distbench: tiny\n")
    assert main(["show", str(run.folder), "--md", "--json"]) == 2
    assert "--md, --csv and --json" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["10 % of ddp", "fsdp-grad-op+offload", "1.2 (1.0 to 1.4)", "3 × 4"])
def test_plain_text_stays_readable_as_it_stands(text):
    assert escape_markdown(text) == text
