"""Cards of strategies: what they claim is what the theory that is measured against says, and has a source."""

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.analysis.choice import Candidate
from distbench.analysis.memory_ranges import memory_ranges, memory_ranges_sentence
from distbench.analysis.run import RunAnalysis
from distbench.analysis.settings import strategy_description
from distbench.analysis.statistics.intervals import ConfidenceInterval
from distbench.core import registry
from distbench.core.case import Batch, PluginChoice, PrecisionConfig
from distbench.core.units import format_bytes
from distbench.record.run_folder import Run
from distbench.report.page import chapters
from distbench.strategies.cards import card_for
from distbench.strategies.description import StrategyDescription
from support.records import case, measured
from support.theory_checks import bytes_by_operation

PACKAGE = Path(registry.__file__).parents[1]
SAMPLE = str(Path(__file__).parents[3] / "reports" / "sample")
VARIANTS = [
    pytest.param(variant, id=variant.label)
    for strategy in registry.built_in_plugins("strategies").values()
    for variant in strategy.variants()
]
MIXED = PrecisionConfig("bf16", "bf16", "fp32", "fp32")


@pytest.mark.parametrize("strategy", VARIANTS)
def test_every_strategy_has_a_card_whose_facts_have_sources(strategy):
    card = strategy.card
    aspects = [claim.aspect for claim in card.claims]
    assert aspects[:4] == ["shards", "moves", "keeps", "use it if"]
    assert [claim.text for claim in card.claims if not claim.source and claim.aspect != "use it if"] == []
    assert all(
        re.match(r"https://(arxiv\.org|docs\.pytorch\.org|.*deepspeed)", c.source or "https://arxiv.org")
        for c in card.claims
    )


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 8])
def test_bytes_per_parameter_on_a_card_are_those_of_the_theory(stage, ranks):
    zero = registry.built_in_plugins("strategies")["zero"]
    (keeps,) = (claim.text for claim in zero(stage=stage).card.claims if claim.aspect == "keeps")
    paper = re.search(r"precision ([0-9+/ ]*?(?:ranks)?) bytes", keeps)[1]
    sums = re.search(r"takes ([0-9/ ]*(?:ranks)?) more", keeps)[1] if stage else "0"
    # DeepSpeed's stage 1 keeps whole gradients, as the paper's does, only to add others to them
    of = case("zero", ranks, precision=MIXED, batch=Batch(16 * ranks, 8, 2))
    lean = zero(stage=stage, grad_accum_dtype="bf16" if stage else "fp32")
    for built, formula in ((lean, paper), (zero(stage=stage), f"{paper} + {sums}")):
        bytes_each = sum(built.model_states(of, 1000).values()) / 1000
        assert bytes_each == pytest.approx(eval(formula.replace("ranks", str(ranks))))


def moved(name: str, **options: object) -> float:
    """Bytes that a rank sends per step in a ring of many ranks, over those of the parameters."""
    strategy = registry.built_in_plugins("strategies")[name](**options)
    of = case(name, 8, batch=Batch(64, 8, 1))
    # a ring reduces and then gathers
    sizes = bytes_by_operation(strategy, of, 1000)
    return sum(size * (2 if operation == "all_reduce" else 1) for operation, size in sizes.items()) / 4000


def said(name: str, **options: object) -> str:
    """The beginning of what a card says of communication."""
    card = registry.built_in_plugins("strategies")[name](**options).card
    (text,) = (claim.text for claim in card.claims if claim.aspect == "moves")
    return re.match(r".*? x (the|what DDP)", text)[0]


def test_what_a_card_says_of_communication_is_what_the_theory_says():
    assert (moved("ddp"), said("ddp")) == (2, "2 x the")
    assert [(moved("zero", stage=stage), said("zero", stage=stage)) for stage in (0, 1, 2)] == [
        (2, "2 x the")
    ] * 3
    assert (moved("zero", stage=3), said("zero", stage=3)) == (2 * 1.5, "Up to 1.5 x what DDP")
    assert (moved("fsdp"), said("fsdp")) == (3, "3 x the")
    assert (moved("fsdp", sharding="grad_op"), said("fsdp", sharding="grad_op")) == (2, "2 x the")


def candidate(name: str, memory: float | None, speed: float) -> Candidate:
    return Candidate(
        name, name, name, 2, "fp32", "tiny", len(name), ConfidenceInterval(speed, 0.001, 10, 3), memory
    )


def test_the_turns_of_a_choice_are_branches_by_memory():
    sizes = {"fast": (300.0, 30.0), "middle": (200.0, 20.0), "lean": (100.0, 10.0)}
    found = memory_ranges([candidate(name, *numbers) for name, numbers in sizes.items()])
    assert [(b.at_least, b.below, b.pick and b.pick.name) for b in found] == [
        (300.0, None, "fast"),
        (200.0, 300.0, "middle"),
        (100.0, 200.0, "lean"),
        (0.0, 100.0, None),
    ]
    said = memory_ranges_sentence(found, 2)
    assert said.startswith("Choice by device memory, on 2 devices: 300 B or more: fast (30.0 tokens/s); ")
    assert said.endswith("below 100 B: no measured case fits.")
    assert memory_ranges([]) == []
    assert memory_ranges([candidate("fast", None, 30.0)]) == []


def test_the_view_has_a_row_and_a_card_for_each_strategy_and_the_decision(command):
    code, output, _ = command("show", SAMPLE, "--view", "strategies", "--json")
    view = json.loads(output)
    assert code == 0
    assert [row["strategy"] for row in view["rows"]] == ["ddp", "fsdp", "zero2", "zero3"]
    zero2 = view["rows"][2]
    assert zero2["shards"] == "optimizer, gradients"
    # theory reduce-scatters gradients, DeepSpeed all-reduced them: the same payload, 1.5 times the bytes
    assert zero2["comm_wire_bytes"] == pytest.approx(1.5 * zero2["comm_wire_bytes_theory"], rel=0.01)
    picked = json.loads(command("pick", SAMPLE, "--json")[1])
    names = [picked["pick"]["case"], *(turn["pick"]["case"] for turn in picked["turns"] if turn["pick"])]
    decision, *cards, sources = view["notes"]
    assert re.findall(r": (\S+) \(", decision) == names
    assert [note.partition(".")[0] for note in cards] == ["ddp", "fsdp", "zero2", "zero3"]
    cited = set(re.findall(r"\[(\d)\]", " ".join(cards)))
    assert cited == set(re.findall(r"\[(\d)\] https://", sources))


def test_the_page_has_the_decision_as_a_tree_and_a_card_for_each_strategy():
    run = RunAnalysis.read(Run(Path(SAMPLE)))
    (chapter,) = (each for each in chapters(run) if each.id == "strategies")
    turns = chapter.content.questions
    assert [turn.name for turn in turns] == [
        branch.pick.name if branch.pick else "" for branch in memory_ranges(run.candidates)
    ]
    assert (turns[0].least, turns[-1].least) == (format_bytes(memory_ranges(run.candidates)[0].at_least), "")
    assert turns[-1].summary == "no measured case fits"
    assert " slower" in turns[1].summary
    rows = {row.case.label: row.values for row in run.cases if row.case.world_size == 2 and row.measured}
    cards = chapter.content.cards
    assert [card.name for card in cards] == sorted(rows, key=lambda name: -rows[name]["tokens_per_s"].value)
    moves = {
        card.name: (fact.theory, fact.measured)
        for card in cards
        for fact in card.facts
        if fact.claim.aspect == "moves"
    }
    assert moves == {
        name: (format_bytes(of["comm_wire_bytes_theory"].value), format_bytes(of["comm_wire_bytes"].value))
        for name, of in rows.items()
    }


def test_the_tree_nests_a_question_in_each_no(see):
    names = {"ddp": 30.0, "zero": 20.0, "fsdp": 10.0}
    seen = see(*(measured(case(name), 1000 * size, memory_peak=size * 2**20) for name, size in names.items()))
    tree = seen.page.locator(".tree")
    assert tree.locator("li li li li").count() == 2
    for name in names:
        path = tree.locator("li", has=seen.page.get_by_role("link", name=name, exact=True))
        assert path.last.inner_text().startswith("yes")
    assert "no measured case fits" in tree.locator("li").last.inner_text()
    cards = seen.page.locator(".cards article")
    assert cards.locator("h4 a").all_inner_texts() == [*names]
    assert cards.locator("a[rel=noreferrer][href^='https://']").count() >= 3 * len(names)


def test_list_has_the_cards_of_one_strategy(command):
    code, output, _ = command("list", "strategies", "zero")
    assert code == 0
    assert "zero2" in output
    assert "https://arxiv.org/abs/1910.02054" in output
    assert "bucket_cap_mb" not in output
    code, _, errors = command("list", "strategies", "zeroo")
    assert (code, "did you mean 'zero'?" in errors) == (2, True)


PLUGIN = """
from distbench.strategies.cards import Card, Claim
from distbench.strategies.ddp import DistributedDataParallel

class Mine(DistributedDataParallel):
    label = "mine"
    card = Card("nothing", (Claim("moves", "As much as ddp.", "https://example.org/paper"),))

    @classmethod
    def variants(cls):
        return (cls(),)
"""


def test_a_plug_in_gives_its_own_card(command, tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    (tmp_path / "strategies" / "mine.py").write_text(PLUGIN)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    code, output, _ = command("list", "strategies", "mine")
    assert (code, "moves: As much as ddp. [https://example.org/paper]" in output) == (0, True)


def test_a_plug_in_whose_variants_have_no_card_is_listed(command, tmp_path, monkeypatch):
    (tmp_path / "strategies").mkdir()
    without = re.sub(r"card = .*", "card = None", PLUGIN)
    assert "card = None" in without
    (tmp_path / "strategies" / "mine.py").write_text(without)
    monkeypatch.setenv("DISTBENCH_PLUGINS", str(tmp_path))
    code, output, errors = command("list", "strategies", "mine")
    assert (code, "mine" in output) == (0, True), errors


def test_the_file_of_cards_has_no_claim_and_no_source_that_no_strategy_shows():
    tables = tomllib.loads((PACKAGE / "strategies" / "cards.toml").read_text(encoding="utf-8"))
    sources = tables.pop("sources")
    assert {name for table in tables.values() for name in table.get("sources", {}).values()} == {*sources}
    zero = registry.built_in_plugins("strategies")["zero"](offload_optimizer="cpu")
    strategies = [zero, *(each.values[0] for each in VARIANTS)]
    shown = "\n".join(claim.text for strategy in strategies for claim in strategy.card.claims)
    texts = [table[key] for table in tables.values() for key in table.keys() - {"summary", "sources"}]
    assert [text for text in texts if " ".join(text.split()).rstrip(".") not in shown] == []


def test_a_strategy_of_anybody_has_no_card():
    assert card_for(PluginChoice("mine")) is None
    assert card_for(PluginChoice("zero", {"stage": "x"})) is None
    assert card_for(PluginChoice("zero", {"bogus": 1})) is None


# words that a later version may know
LATER = [
    PluginChoice("fsdp", {"mesh": "nearest"}),
    PluginChoice("fsdp", {"mesh": None}),
    PluginChoice("fsdp", {"mesh": ["dp_shard"]}),
    PluginChoice("fsdp", {"sharding": "x"}),
    PluginChoice("pp", {"schedule": "X"}),
    PluginChoice("zero", {"mesh": "nearest"}),
]


@pytest.mark.parametrize("choice", LATER, ids=str)
def test_options_that_this_version_does_not_know_cost_a_card_and_a_description_and_no_more(choice):
    assert card_for(choice) is None
    assert strategy_description(replace(case(choice.name), strategy=choice), None) == StrategyDescription()
