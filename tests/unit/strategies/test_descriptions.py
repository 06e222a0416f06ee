"""What a strategy says of itself in its records, and how records are read that say nothing."""

import dataclasses
import json

import pytest

from distbench.analysis.candidates import make_candidates
from distbench.analysis.case_aggregation import summarize_cases
from distbench.analysis.communication import CommunicationVolume, compare_volume
from distbench.analysis.settings import setting_meaning, strategy_description
from distbench.core import registry
from distbench.core.case import Case, PluginChoice
from distbench.core.serialization import decode
from distbench.record import Record
from distbench.strategies.description import ExcessCause, SettingMeaning, StrategyDescription
from support.records import case, info, measured

UNKNOWN_STRATEGY = StrategyDescription(
    settings={
        "ring": SettingMeaning("strategy", "what is sharded"),
        "drops": SettingMeaning("work", "drops samples"),
    },
    simplicity=5,
    offloads=("cpu",),
    deviations=(ExcessCause("all_gather", "were gathered by the ring", ("ring",)),),
)


def unknown_strategy_record(of: Case, **more: object) -> Record:
    return dataclasses.replace(measured(of), described_strategy=UNKNOWN_STRATEGY, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", registry.plugin_names("strategies"))
def test_a_description_is_read_from_a_record_as_it_was_written(name):
    description = registry.create_plugin("strategies", PluginChoice(name)).description()
    plain = json.loads(json.dumps(dataclasses.asdict(description)))
    assert decode(StrategyDescription, plain, "test") == description
    assert all(meaning.why for meaning in description.settings.values())


def test_a_record_without_a_description_is_read_by_distbenchs_own_strategies():
    old = measured(case(strategy=PluginChoice("zero", {"stage": 3, "offload_optimizer": "nvme"})))
    assert setting_meaning("zero_stage", old)[0] == "strategy"
    assert setting_meaning("optimizer.lr", old)[0] == "work"
    assert setting_meaning("something", old)[0] == "unknown"
    assert strategy_description(old.case, old).offloads == ("nvme",)


@pytest.mark.parametrize("strategy", [PluginChoice("of_nobody"), PluginChoice("zero", {"of_tomorrow": 1})])
def test_a_strategy_that_nobody_here_knows_is_described_by_its_record_alone(strategy):
    of = case(strategy=strategy)
    assert strategy_description(of, None) == StrategyDescription()
    assert strategy_description(of, unknown_strategy_record(of)) == UNKNOWN_STRATEGY


def test_a_foreign_strategy_says_what_a_difference_in_its_settings_means():
    record = unknown_strategy_record(case("foreign"))
    assert setting_meaning("ring", record) == ("strategy", "what is sharded")
    assert setting_meaning("drops", measured(case()), record)[0] == "work"


def test_a_foreign_strategy_explains_what_it_moves_beyond_theory():
    rows = [{"rank": 0, "op": "all_gather", "bytes": 3000.0, "group_size": 2, "step": 0, "place": 0}]
    theory = [{"rank": 0, "op": "all_gather", "bytes": 1000.0}]
    tables = {"collectives": rows, "collectives_theory": theory}
    values = {"comm_bytes_theory": 1000.0}
    found = compare_volume(
        unknown_strategy_record(case("foreign"), tables=tables, values=values, effective={"ring": 2})
    )
    assert found is not None
    assert [cause.bytes for cause in found.causes] == [2000.0]
    assert "ring = 2" in found.causes[0].text
    assert not found.unexplained_by_op


def test_the_simpler_of_two_strategies_is_preferred_whoever_wrote_it():
    simple = dataclasses.replace(UNKNOWN_STRATEGY, offloads=())
    of = case("foreign")
    records = [measured(case("ddp")), dataclasses.replace(measured(of), described_strategy=simple)]
    rows = summarize_cases(info(case("ddp"), of), records)
    simplicity = {row.label: row.simplicity for row in make_candidates(rows, {}, {})}
    assert simplicity["foreign"] < simplicity["ddp"]


ELEMENTS = 1_000_000
SETTINGS = {"parameters": ELEMENTS, "max_live_parameters": 3 * ELEMENTS, "max_reuse_distance": 0}


def gathers_of_zero3(times: float, **effective: int) -> CommunicationVolume:
    """Return the volume of a step of ZeRO-3 in fp32 that gathers *times* what theory says."""
    of = case(strategy=PluginChoice("zero", {"stage": 3}))
    theory = 2.0 * ELEMENTS * 4
    row = {"rank": 0, "op": "all_gather", "bytes": times * theory, "group_size": 2, "step": 0, "place": 0}
    tables = {"collectives": [row], "collectives_theory": [{"rank": 0, "op": "all_gather", "bytes": theory}]}
    record = dataclasses.replace(
        measured(of, comm_bytes_theory=theory), tables=tables, effective={**SETTINGS, **effective}
    )
    found = compare_volume(record)
    assert found is not None
    return found


def test_ten_times_the_textbook_is_more_than_the_thresholds_of_zero_3_allow():
    found = gathers_of_zero3(10, prefetch_bucket_size=ELEMENTS // 4, shared_parameters=ELEMENTS // 8)
    assert found.unexplained_share == pytest.approx(9 - 3 / 8)
    unlimited = gathers_of_zero3(10, prefetch_bucket_size=1000 * ELEMENTS, shared_parameters=0)
    assert unlimited.unexplained_share == pytest.approx(8), "no threshold makes a pass gather all twice"


def test_what_is_prefetched_too_early_and_what_two_modules_share_has_a_known_cause():
    found = gathers_of_zero3(1.375, prefetch_bucket_size=ELEMENTS // 4, shared_parameters=ELEMENTS // 8)
    assert found.unexplained_share == 0
    assert "gathered more than once in a pass" in found.causes[0].text
    more = gathers_of_zero3(1.375, prefetch_bucket_size=0, shared_parameters=ELEMENTS // 8)
    assert more.unexplained_share == pytest.approx(0.25)


def test_checkpointed_layers_are_gathered_once_more_for_each_micro_batch():
    more = {"prefetch_bucket_size": 0, "shared_parameters": 0}
    assert gathers_of_zero3(1.5, **more, checkpointed_layers=4).unexplained_share == 0
    assert gathers_of_zero3(1.5, **more, checkpointed_layers=0).unexplained_share == pytest.approx(0.5)
