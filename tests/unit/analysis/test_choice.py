"""What to train with: right for record sets whose right answer is known, and honest about the noise."""

import json
from dataclasses import replace
from typing import Any

import pytest

from distbench.analysis.candidates import ASSUMED_CONTEXT_BYTES
from distbench.analysis.choice import Requirements, Selection, select_case
from distbench.analysis.memory_ranges import memory_thresholds
from distbench.analysis.wording.findings import all_findings
from distbench.analysis.wording.recommendation import recommend
from distbench.cli import main
from distbench.core.case import Batch, Case, PrecisionConfig
from distbench.core.case import PluginChoice as Plugin
from distbench.record import Record
from distbench.record.run_folder import Run
from distbench.report.page_data import picker_data
from distbench.report.recommendation import candidate_table
from support.known_choices import DDP, FSDP, KNOWN, MIB, OFFLOAD, ZERO2, ZERO3, trials
from support.records import case, failed, measured, run_of, stored_run


def recommended_by(*records: Record, **wish: Any) -> Selection:
    return select_case(run_of(*records).candidates, Requirements(**wish))


def recommendation_text(*records: Record, **wish: Any) -> str:
    found = recommend(run_of(*records), Requirements(**wish))
    return " ".join([found.headline, *found.reasons])


def pick_and_ties(choice: Selection) -> tuple[str, list[str]]:
    return choice.pick.name if choice.pick else "", [one.name for one in choice.tied]


@pytest.mark.parametrize("known", KNOWN.values(), ids=list(KNOWN))
def test_the_right_answer_is_given_where_it_is_known(known):
    memory = known.mib and known.mib * MIB
    assert pick_and_ties(recommended_by(*known.records, memory=memory)) == (
        known.pick,
        list(known.alike or ([known.pick] if known.pick else [])),
    )
    text = recommendation_text(*known.records, memory=memory)
    assert [each for each in known.says if each not in text] == []


def test_what_would_change_the_answer_is_told_with_what_it_costs():
    text = recommendation_text(*KNOWN["offload as the only fit"].records)
    assert "If a device has less than 400 MiB, use zero3+offload (100 MiB, 65% slower)." in text


def test_a_leaner_case_that_only_noise_ties_is_told_with_what_it_costs_by_estimate():
    text = recommendation_text(*trials(DDP, 1000, 1200, mib=800), *trials(ZERO2, 850, 1050, mib=400))
    assert "use zero2 (400 MiB, 14% slower, not significant)." in text


def test_more_devices_that_are_slower_are_not_recommended_without_a_word():
    few, many = case("ddp", 2), case("ddp", 4)
    assert few.batch.global_batch_size == many.batch.global_batch_size
    slower = recommendation_text(*trials(few, 2000, 2010), *trials(many, 1000, 1010))
    assert "2 devices are faster: ddp, 2,005 tokens/s (distbench pick RUN --devices 2)." in slower
    assert "are faster" not in recommendation_text(*trials(few, 1000, 1010), *trials(many, 2000, 2010))


# -- what may be chosen


def test_what_failed_or_was_disturbed_is_left_out_with_why():
    disturbed = [replace(each, degraded="others computed") for each in trials(FSDP, 5000, 5010)]
    choice = recommended_by(*trials(DDP, 1000, 1010), failed(ZERO2), *disturbed)
    why = {one.name: why for one, why in choice.excluded}
    assert pick_and_ties(choice)[0] == "", "noise took from fsdp, and it was faster all the same"
    assert [one.name for one in choice.provisional] == ["fsdp", "ddp"]
    assert why["zero2"] == "crashed: rank 1 in time: RuntimeError: no"
    assert why["fsdp"] == "measured on a noisy machine: others computed"


def test_a_reason_against_several_cases_is_told_once():
    told = {"optimizer": {"class": "torch.optim.adamw.AdamW", "lr": 0.001, "eps": 1e-8}}
    other = {"optimizer": {"class": "torch.optim.adamw.AdamW", "lr": 0.001, "eps": 1e-3}}
    honest = [replace(each, effective=told) for each in (*trials(DDP, 1000, 1010), *trials(OFFLOAD, 10, 11))]
    unfair = [replace(each, effective=other) for each in (*trials(FSDP, 5000), *trials(ZERO2, 6000))]
    found = recommend(run_of(*unfair, *honest), Requirements())
    (text,) = [each for each in found.reasons if "optimizer.eps" in each]
    assert text.startswith(
        "zero2, fsdp were faster, but are not recommended: not the same work: optimizer.eps"
    )


def test_what_did_other_work_is_never_taken():
    told = {"optimizer": {"class": "torch.optim.adamw.AdamW", "lr": 0.001, "eps": 1e-8}}
    other = {"optimizer": {"class": "torch.optim.adamw.AdamW", "lr": 0.001, "eps": 1e-3}}
    told["dtypes"] = other["dtypes"] = {"reduce": "fp32"}
    honest = [replace(each, effective=told) for each in trials(DDP, 1000, 1010)]
    unfair = [replace(each, effective=other) for each in trials(ZERO2, 2000, 2010)]
    choice = recommended_by(*honest, *unfair)
    assert pick_and_ties(choice)[0] == "ddp"
    assert [why for _, why in choice.excluded if why.startswith("not the same work: optimizer.eps = 0.001")]


def test_other_precisions_and_devices_are_never_held_against_one_another():
    half = case("ddp", name="ddp/ws2/mb4/bf16", precision=PrecisionConfig(compute="bf16"))
    more = case("ddp", 4)
    every = [
        *trials(DDP, 1000, 1010),
        *trials(FSDP, 900, 905),
        *trials(half, 5000, 5010),
        *trials(more, 1500),
    ]
    on_two = recommended_by(*every, devices=2)
    assert (on_two.requirements.precision, pick_and_ties(on_two)[0]) == ("fp32", "ddp/fp32")
    assert recommended_by(*every, devices=2, precision="bf16").pick.id == half.id
    assert recommended_by(*every).requirements.devices == 4


def test_the_only_case_of_its_precision_is_told_where_the_others_are():
    half = case("ddp", name="ddp/ws2/mb4/bf16", precision=PrecisionConfig(compute="bf16"))
    unproven = case("ddp", name="ddp/ws2/mb4/fp32/reduce=fp16", precision=PrecisionConfig(reduce="fp16"))
    every = [
        *trials(DDP, 1000, 1010, 990),
        *trials(half, 2000, 2010, 1990),
        *trials(unproven, 3000, 3010, 2990),
    ]
    text = recommendation_text(*every, precision="fp32")
    assert "only case in fp32 that can be recommended; see also distbench pick RUN --precision bf16." in text


def test_run_of_another_global_batch_are_other_work():
    large = case("ddp", name="ddp/ws2/mb8/fp32", batch=Batch(16, 8, 1))
    choice = recommended_by(*trials(DDP, 1000), *trials(FSDP, 900), *trials(large, 3000))
    assert {one.name for one in choice.ranked} == {"ddp/mb4", "fsdp/mb4"}
    assert choice.requirements.work == "mb4"


def test_a_world_size_with_a_larger_batch_is_the_same_work_on_more_devices():
    weak = [case("ddp", size, batch=Batch(4 * size, 4, 1)) for size in (1, 2, 4)]
    assert {one.work for one in run_of(*(measured(each) for each in weak)).candidates} == {""}


def test_unwanted_strategies_and_unknown_memory_are_left_out():
    unknown = measured(FSDP, 2000)
    del unknown.values["memory_peak"]
    records = [*trials(DDP, 1000), *trials(ZERO2, 1500), unknown]
    assert pick_and_ties(recommended_by(*records))[0] == "fsdp"
    assert pick_and_ties(recommended_by(*records, memory=10**12))[0] == "zero2"
    assert pick_and_ties(recommended_by(*records, memory=10**12, avoid=("zero*",)))[0] == "ddp"


# -- goals


def test_the_leanest_is_sought_among_those_near_the_fastest():
    records = [
        *trials(DDP, 1000, 1001, mib=400),
        *trials(ZERO2, 950, 951, mib=300),
        *trials(ZERO3, 500, 501, mib=200),
    ]
    assert pick_and_ties(recommended_by(*records, goal="memory"))[0] == "zero2"
    assert pick_and_ties(recommended_by(*records, goal="memory", within=0.6))[0] == "zero3"
    assert pick_and_ties(recommended_by(*records, goal="memory", within=0.01))[0] == "ddp"


def test_of_the_same_memory_the_faster_is_taken():
    records = [*trials(DDP, 1000, 1001, mib=300), *trials(ZERO2, 1080, 1081, mib=301)]
    assert pick_and_ties(recommended_by(*records, goal="memory"))[0] == "zero2"


def test_a_leaner_one_that_is_slower_is_not_said_to_be_beaten_by_its_memory():
    records = [*trials(DDP, 1000, 1001, mib=301), *trials(ZERO2, 950, 951, mib=300)]
    assert pick_and_ties(recommended_by(*records, goal="memory"))[0] == "ddp"
    assert "1.0526x (1.0523 to" in recommendation_text(*records, goal="memory")
    assert "of the memory of" not in recommendation_text(*records, goal="memory")


def test_the_cheapest_per_token_is_told_by_energy_and_without_it_nothing_is():
    joules = {"energy_per_token": {"unit": "J", "better": "lower"}}

    def with_energy(of: Case, speed: float, *energies: float) -> list[Record]:
        return [
            replace(each, columns={**each.columns, **joules})
            for i, energy in enumerate(energies)
            for each in [measured(of, speed, round_=i, energy_per_token=energy)]
        ]

    records = [*with_energy(DDP, 1000, 0.5, 0.51), *with_energy(FSDP, 900, 0.3, 0.31)]
    assert pick_and_ties(recommended_by(*records, goal="tokens-per-joule"))[0] == "fsdp"
    assert recommendation_text(*trials(DDP, 1000), goal="tokens-per-joule") == (
        "No recommendation for 2 devices: energy unknown: not measured."
    )


def test_turns_name_every_budget_at_which_the_answer_changes():
    records = [*trials(DDP, 1000, mib=400), *trials(ZERO2, 900, mib=300), *trials(ZERO3, 800, mib=200)]
    every = run_of(*records).candidates
    found = memory_thresholds(every, select_case(every, Requirements()))
    assert [(below / MIB, pick_and_ties(then)[0]) for below, then in found] == [
        (400, "zero2"),
        (300, "zero3"),
        (200, ""),
    ]


# -- memory of a device


def needed_memory(device: str, **values: float) -> float | None:
    of = case("ddp", device=device)
    return run_of(*trials(of, 1000, mib=100, **values)).candidates[0].memory


def test_a_device_must_hold_more_than_torchs_allocator_does():
    reserved = 300.0 * MIB
    assert needed_memory("cuda", memory_reserved_peak=reserved) == reserved + ASSUMED_CONTEXT_BYTES
    assert needed_memory("cuda", memory_reserved_peak=reserved, gpu_memory_own=900.0 * MIB) == 900 * MIB
    assert needed_memory("cuda", memory_reserved_peak=reserved, gpu_memory_own=200.0 * MIB) == reserved
    whole = {"memory_device_peak": 700.0 * MIB}
    assert needed_memory("cuda", memory_reserved_peak=reserved, **whole) == 700 * MIB, "in a container, say"
    assert (
        needed_memory("cuda", memory_reserved_peak=reserved, gpu_memory_own=600.0 * MIB, **whole) == 600 * MIB
    )
    assert needed_memory("cpu") == 100 * MIB


def test_what_nothing_has_measured_is_not_called_a_peak():
    assumed, reported = (
        run_of(
            *trials(case("ddp", device="cuda"), 1000, mib=1024, **own),
            *trials(case("fsdp", device="cuda"), 900, mib=512, **own),
        )
        for own in ({}, {"gpu_memory_own": 2.0**31})
    )
    words = "2.00 GiB per device (1.00 GiB of it an unmeasured allowance"
    assert f"tokens/s, memory {words}" in recommend(assumed).headline.replace("(spread unknown) ", "")
    assert "tokens/s, peak memory 2.00 GiB per device." in recommend(reported).headline
    least = next(each for each in all_findings(assumed) if each.startswith("Lowest memory"))
    assert "fsdp, 1.50 GiB per device (1.00 GiB of it an unmeasured allowance" in least
    notes = candidate_table(select_case(assumed.candidates, Requirements())).notes
    assert any(
        "Memory includes an unmeasured allowance of 1.00 GiB" in each and "ddp, fsdp" in each
        for each in notes
    )
    assert not any(
        "assumed" in each for each in candidate_table(select_case(reported.candidates, Requirements())).notes
    )
    assert picker_data(assumed)["assumed"] == "1.00 GiB"


# -- intervals


def test_without_a_second_trial_no_spread_is_claimed():
    text = recommendation_text(*trials(DDP, 1000), *trials(FSDP, 990))
    assert "so the noise is unknown" in text
    assert "as fast as fsdp, the next worse case." in text


def test_a_case_that_looks_better_in_every_respect_is_named_beside_the_simpler_pick():
    records = [*trials(DDP, 1000, 1040, 960, mib=400), *trials(ZERO2, 1015, 985, 1030, mib=300)]
    found = recommend(run_of(*records), Requirements())
    assert found.headline.startswith("Train with ddp on 2 devices, tied with zero2: 1,000 (")
    assert "The point estimates favor zero2 in speed (1.01x) and in memory (75%)" in found.headline
    assert any("more trials per case would show" in reason for reason in found.reasons)


def test_a_trial_that_no_mean_holds_is_named():
    records = [*trials(ZERO2, 1500, 1510, 90), *trials(DDP, 1000, 1010, 990), *trials(FSDP, 700, 705, 695)]
    told = [line for line in all_findings(run_of(*records)) if line.startswith("Excluded")]
    assert told == [f"Excluded as outliers among the trials of their case: round 3 of {ZERO2.name}."]


def test_the_simplest_of_a_tie_is_not_taken_if_it_looks_much_slower():
    records = [*trials(DDP, 900, 1000, 800), *trials(ZERO2, 1000, 900, 1010)]
    assert pick_and_ties(recommended_by(*records)) == ("zero2", ["zero2", "ddp"])
    assert pick_and_ties(recommended_by(*records, margin=0.1))[0] == "ddp"


def test_the_first_version_of_fsdp_is_the_last_resort_of_a_tie():
    old = case("fsdp1", strategy=Plugin("fsdp", {"version": 1}))
    records = [*trials(old, 1000, 1001), *trials(ZERO3, 1001, 1000)]
    assert pick_and_ties(recommended_by(*records)) == ("zero3", ["fsdp1", "zero3"])


# -- the command


@pytest.fixture
def run(tmp_path) -> Run:
    return stored_run(tmp_path, *trials(DDP, 1000, 1010, mib=800), *trials(OFFLOAD, 350, 355, mib=100))


def test_pick_prints_the_answer_and_what_it_was_chosen_from(run, capsys):
    assert main(["pick", str(run.folder)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Train with ddp on 2 devices: 1,005 (")
    assert "If a device has less than 800 MiB, use zero3+offload" in " ".join(text.split())
    assert [line.split()[:2] for line in text.splitlines() if line.startswith("> ")] == [[">", "ddp"]]


def test_pick_as_json_tells_the_choice_and_is_one_document(run, capsys):
    assert main(["pick", str(run.folder), "--memory", "0.5 GiB", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pick"]["case"] == "zero3+offload"
    assert told["left_out"][0]["why"] == "does not fit"
    assert told["turns"] == [{"memory_below": 100 * MIB, "pick": None}]


def test_pick_of_nothing_ends_with_exit_code_1(run, capsys):
    assert main(["pick", str(run.folder), "--memory", "1MiB"]) == 1
    assert "No measured case fits in 1.00 MiB" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--goal", "fastest"], "--goal = 'fastest': Allowed: memory, throughput, tokens-per-joule"),
        (["--memory", "24"], "--memory = '24': expected a size with a unit, such as 24GiB or 512MiB"),
        (["--within", "2"], "--within = '2': expected a fraction between 0 and 1, such as 10% or 0.1"),
        (["--devices", "3"], "--devices = 3: no case of this run has it; available: 2"),
        (["--precision", "fp8"], "--precision = 'fp8': no case of this run has it; available: fp32"),
    ],
)
def test_what_can_not_be_picked_by_is_told_with_what_can(run, capsys, arguments, message):
    assert main(["pick", str(run.folder), *arguments]) == 2
    assert message in capsys.readouterr().err
