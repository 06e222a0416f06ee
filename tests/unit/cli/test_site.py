"""The site: what is generated of the code is complete, and the navigation has every page."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ruamel.yaml import YAML

from distbench.cli import main
from distbench.core import registry

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("distbench_site", ROOT / "docs" / "_hooks" / "site.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference(site) -> dict[str, str]:
    return site.pages()  # type: ignore[no-any-return]


def leaves(nav: Any) -> Iterator[str]:
    for entry in nav if isinstance(nav, list) else [*nav.values()]:
        yield from [entry] if isinstance(entry, str) else leaves(entry)


def test_the_navigation_of_the_site_has_every_page_once(reference):
    text = (ROOT / "mkdocs.yml").read_text().replace("!ENV", "")
    nav = [*leaves(YAML(typ="safe").load(text)["nav"])]
    assert sorted(nav) == sorted([*reference, *(file.name for file in (ROOT / "docs").glob("*.md"))])


def test_the_reference_has_every_command_key_view_and_table(reference, site, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)

    def listed(*words: str) -> Any:
        assert main([*words]) == 0
        return json.loads(capsys.readouterr().out)

    heads = re.findall(r"^## (\w+)$", reference["reference/commands.md"], re.MULTILINE)
    files = {file.stem.rstrip("_") for file in (ROOT / "distbench" / "cli" / "commands").glob("[!_]*.py")}
    assert sorted(heads) == sorted(files)
    for row in listed("list", "suite", "--json"):
        assert (
            f"`{row['key']}`" in reference["reference/suite.md"]
            or f"## {row['key']}" in reference["reference/suite.md"]
        )
    assert all(f"`{name}`" in reference["reference/views.md"] for name in registry.plugin_names("views"))
    for table in listed("query", "--tables", "reports/sample", "--json"):
        assert f"## {table['name']}\n" in reference["reference/sql.md"]
    codes = re.findall(r"^\| (\d+) \|", reference["reference/exit-codes.md"], re.MULTILINE)
    assert {"2", "3", "4", "75", "130"} <= {*codes}


@pytest.mark.parametrize(
    "strategy",
    [
        pytest.param(variant, id=variant.label)
        for strategy in registry.built_in_plugins("strategies").values()
        for variant in strategy.variants()
    ],
)
def test_the_reference_of_strategies_has_every_card(strategy, reference):
    under = (
        reference["reference/strategies.md"].partition(f"### `{strategy.label}`\n")[2].partition("\n### ")[0]
    )
    under = under.replace("\\", "")
    assert strategy.card.claims
    for claim in strategy.card.claims:
        source = f" [source]({claim.source})" if claim.source else ""
        assert f"- **{claim.aspect}**: {claim.text}{source}" in under


def test_links_that_leave_the_docs_lead_to_the_repository_or_are_text(site):
    class Config:
        repo_url = ""

    text = "[`zero.yaml`](../suites/zero.yaml) [all](../reports/sample/report.html) [here](gate.md)"
    rewritten = site.on_page_markdown(text, None, Config, None)
    assert rewritten == "`zero.yaml` [all](sample/report.html) [here](gate.md)"
    Config.repo_url = "https://example.org/a/b/"
    linked = site.on_page_markdown(text, None, Config, None)
    assert linked.startswith(
        "[`zero.yaml`](https://example.org/a/b/blob/main/suites/zero.yaml) [all](sample/"
    )
