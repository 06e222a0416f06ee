"""What the gate makes of pairs of records: laws that hold whatever is measured, and each number's rule."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from distbench.gate import metric_rules
from distbench.gate.case_verdict import likely_cause
from distbench.gate.metric_rules import metric_findings
from distbench.gate.pairs import CasePairs
from distbench.gate.sequential_test import BYTE_ESTIMATOR, PairRule, is_series_over, take_look
from distbench.gate.verdicts import FAILING_VERDICTS, MetricFinding, confirm, mark_unconfirmed, worst_verdict
from distbench.record import Record
from distbench.suite.gate import GateRules, Tolerances
from support import launch_noise, records

MIRROR = {"regressed": "improved", "improved": "regressed"}
GATE = GateRules()
ONE, MANY = records.case("ddp", 1), records.case("ddp", 2)
COUNTERS = {"memory_peak": 1e6, "comm_bytes": 1e5, "comm_calls": 13.0}

log_ratios = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=20)
effects = st.sampled_from([0.01, 0.03, 0.05, 0.2])
any_time = st.none() | st.floats(allow_nan=True, allow_infinity=True)


def trial(step_s: float | None, case=MANY, **changes: float | None) -> Record:
    values = {**COUNTERS, "step_s": step_s, **changes}
    return replace(
        records.measured(case),
        values={key: value for key, value in values.items() if value is not None},
        absent={key: "nothing tells it" for key, value in values.items() if value is None},
    )


def paired(before: Sequence[float | None], after: Sequence[float | None], case=MANY):
    return [(trial(a, case), trial(b, case)) for a, b in zip(before, after, strict=True)]


def findings_of(
    pairs, base=(), own: Tolerances = GATE.tolerances, minutes_per_pair: float = 0.0
) -> dict[str, MetricFinding]:
    found = metric_findings(CasePairs(pairs, base, minutes_per_pair), GATE, own)
    return {one.metric: one for one in found}


def of_ratios(ratios: Sequence[float], case=MANY):
    return paired([1.0] * len(ratios), list(ratios), case)


def paired_memory(peaks: Sequence[tuple[float, float]]):
    """Pairs of equal speed whose peaks are these many times a megabyte."""
    return [tuple(trial(1.0, memory_peak=1e6 * peak) for peak in pair) for pair in peaks]


def counted_finding(own: Tolerances = GATE.tolerances, **values: tuple[float | None, float | None]):
    sides = ({key: pair[side] for key, pair in values.items()} for side in (0, 1))
    return findings_of([tuple(trial(1.0, **side) for side in sides)], own=own)


# laws of a series


@given(log_ratios, effects)
def test_swapping_the_arms_mirrors_the_verdict(values, effect):
    rule = PairRule(effect)
    there, back = take_look(values, rule), take_look([-value for value in values], rule)
    assert back.word == MIRROR.get(there.word, there.word)
    assert (back.is_conclusive, back.pairs_needed) == (there.is_conclusive, there.pairs_needed)
    assert back.ratio == pytest.approx(1 / there.ratio)
    assert (back.low, back.high) == pytest.approx((1 / there.high, 1 / there.low))


@given(log_ratios, st.floats(0, 0.5), st.floats(0, 0.5), effects)
def test_noise_of_a_constant_ratio_widens_and_never_flips(values, one, other, effect):
    """Each pair twice, its ratio once too large by a factor and once too small by it; in a mean of all."""
    small, large = sorted((one, other))
    noisier = [
        take_look(
            [value + sign * noise for value in values for sign in (1, -1)],
            PairRule(effect, estimator=BYTE_ESTIMATOR),
        )
        for noise in (small, large)
    ]
    assert noisier[0].ratio == pytest.approx(noisier[1].ratio)
    widths = [math.log(seen.high / seen.low) for seen in noisier]
    assert widths[1] >= widths[0] - 1e-9
    assert {seen.word for seen in noisier} != {"regressed", "improved"}
    if noisier[0].word != "regressed" and widths[1] > widths[0] + 1e-9:
        assert noisier[1].word != "regressed"


@given(st.lists(st.floats(-1500, 1500), min_size=2, max_size=8), effects)
def test_a_ratio_beyond_all_sense_is_no_crash(values, effect):
    seen = take_look(values, PairRule(effect))
    assert all(0 < value < math.inf for value in (seen.ratio, seen.low, seen.high))
    assert seen.low <= seen.high


@given(log_ratios, effects, st.integers(3, 8), st.integers(8, 40))
def test_a_series_ends_at_its_last_pair_and_never_before_its_first_look(values, effect, least, most):
    rule = PairRule(effect, least, most)
    for count in range(1, len(values) + 1):
        ended = is_series_over(values[:count], rule)
        assert ended if count >= most else not (ended and count < least)


# laws of records

times = st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=2, max_size=12)


@given(times)
def test_swapping_the_records_mirrors_the_case(drawn):
    before, after = zip(*drawn, strict=True)
    there, back = findings_of(paired(before, after)), findings_of(paired(after, before))
    assert there.keys() == back.keys() != set()
    for metric, finding in there.items():
        assert back[metric].word == MIRROR.get(finding.word, finding.word)
        assert (back[metric].baseline, back[metric].candidate) == (finding.candidate, finding.baseline)


@given(times, st.floats(1e-6, 1e6))
def test_scaling_all_times_changes_nothing(drawn, factor):
    before, after = zip(*drawn, strict=True)
    plain = findings_of(paired(before, after))["tokens_per_s"]
    distance = min(abs(math.log(edge)) for edge in (plain.low, plain.high))
    assume(distance > 1e-9 and abs(abs(math.log(plain.ratio)) - math.log1p(0.03)) > 1e-9)
    scaled = findings_of(paired([t * factor for t in before], [t * factor for t in after]))["tokens_per_s"]
    assert scaled.word == plain.word
    assert (scaled.ratio, scaled.low, scaled.high) == pytest.approx((plain.ratio, plain.low, plain.high))


@given(
    st.lists(st.tuples(any_time, any_time), max_size=6),
    st.lists(st.tuples(any_time, any_time), max_size=6),
    st.fixed_dictionaries(dict.fromkeys(COUNTERS, any_time)),
)
def test_whatever_records_hold_each_number_has_a_finding(drawn, of_base, counters):
    pairs = [(trial(a), trial(b, **counters)) for a, b in drawn]
    base = [(trial(a, ONE), trial(b, ONE)) for a, b in of_base]
    found = findings_of(pairs, base)
    assert "tokens_per_s" in found
    assert ("efficiency" in found) == bool(base)
    assert all(one.said and one.said.isprintable() and len(one.said) < 400 for one in found.values())
    told = [value for one in found.values() for value in (one.ratio, one.low, one.high)]
    assert all(value is None or math.isfinite(value) for value in told)
    measured = CasePairs(pairs, base)
    assert metric_rules.is_decided(measured, metric_rules.paired_rules(GATE, GATE.tolerances)) in (
        True,
        False,
    )
    assert metric_rules.expected_pairs(measured, metric_rules.paired_rules(GATE, GATE.tolerances)) >= 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_step_time_that_is_none_is_the_fault_of_the_arm_that_has_it(bad):
    fine = [1.0] * 5
    assert findings_of(paired(fine, [1, 1, bad, 1, 1]))["tokens_per_s"].word == "invalid"
    assert findings_of(paired([1, 1, bad, 1, 1], fine))["tokens_per_s"].word == "incomparable"
    assert findings_of(paired([1.0], [bad]))["tokens_per_s"].word == "invalid"


def test_a_step_time_that_is_absent_is_missing_and_says_why():
    found = findings_of(paired([1.0] * 5, [1, 1, None, 1, 1]))["tokens_per_s"]
    assert (found.word, found.said) == ("missing", "no step time (nothing tells it) in the candidate")
    assert findings_of(paired([1, None], [1, None]))["tokens_per_s"].word == "missing"
    on_one = findings_of(of_ratios([1.0] * 2), paired([1, 1], [1, None], ONE))["efficiency"]
    assert (on_one.word, on_one.said) == ("missing", "no step time (nothing tells it) in the candidate")


def paired_startup(before: Sequence[float | None], after: Sequence[float | None]):
    """Pairs of equal speed that took so many seconds to start."""

    def started(seconds: float | None) -> Record:
        record = trial(1.0, startup_s=seconds)
        return replace(record, columns={**record.columns, "startup_s": {"unit": "s"}})

    return [(started(a), started(b)) for a, b in zip(before, after, strict=True)]


def test_a_slower_start_is_found_if_a_tolerance_is_given():
    slower = paired_startup([4.0] * 5, [5.0, 5.0, 5.1, 5.0, 5.0])
    assert "startup" not in findings_of(slower)
    own = replace(GATE.tolerances, startup=0.1)
    found = findings_of(slower, own=own)
    assert (found["startup"].word, found["tokens_per_s"].word) == ("regressed", "pass")
    assert found["startup"].said == (
        "5 s, was 4 s: 25.5% more time to start (23.9% to 27.1%; 5 pairs; limit 10%)"
    )
    assert findings_of(paired_startup([5.0] * 5, [4.0] * 5), own=own)["startup"].word == "improved"
    assert findings_of(paired_startup([4.0] * 5, [4.2] * 5), own=own)["startup"].word == "pass"


def test_a_start_that_nothing_measured_is_no_pass():
    own = replace(GATE.tolerances, startup=0.1)
    found = findings_of(of_ratios([1.0] * 5), own=own)["startup"]
    reason = "no metric of the suite measures it"
    assert (found.word, found.said) == ("missing", f"no start-up time ({reason}) in the candidate")
    older = findings_of(paired_startup([None] * 5, [4.0] * 5), own=own)["startup"]
    assert older.word == "incomparable"


@pytest.mark.parametrize(("count", "said"), [(0, "0 pairs are"), (1, "1 pair is")])
def test_too_few_pairs_tell_nothing(count, said):
    found = findings_of(of_ratios([2.0] * count))["tokens_per_s"]
    assert found.word == "inconclusive"
    assert found.said.startswith(said)


def test_pairs_on_one_device_that_stopped_are_told_and_not_waited_for():
    pairs, base = of_ratios([1.0, 1.001] * 4), of_ratios([1.0, 1.001], ONE)
    found = findings_of(pairs, base)
    assert found["tokens_per_s"].word == "pass"
    assert found["efficiency"].word == "inconclusive"
    assert "only 2 of 8 pairs" in found["efficiency"].said
    assert metric_rules.is_decided(CasePairs(pairs, base), metric_rules.paired_rules(GATE, GATE.tolerances))


def test_a_series_goes_on_until_every_gated_number_has_its_verdict():
    measured = CasePairs(paired_memory([(1.0, 1.0), (1.0, 1.02)] * 3))
    assert not metric_rules.is_decided(measured, metric_rules.paired_rules(GATE, GATE.tolerances))
    pace_alone = replace(GATE.tolerances, peak_memory=None)
    assert metric_rules.is_decided(measured, metric_rules.paired_rules(GATE, pace_alone))
    only_counted = replace(pace_alone, tokens_per_s=None, efficiency=None)
    assert metric_rules.is_decided(CasePairs(of_ratios([1.0])), metric_rules.paired_rules(GATE, only_counted))
    assert not metric_rules.is_decided(CasePairs([]), metric_rules.paired_rules(GATE, only_counted))


# sentences


@pytest.mark.parametrize(
    ("ratios", "word", "said"),
    [
        ([1.0, 1.01, 0.99, 1.0, 1.0], "pass",
         ("no significant change; up to 1.0% more time per step can't be excluded (97.5% bound; 5 "
         "pairs; limit 3%)")),
        ([0.98, 0.981, 0.979, 0.98, 0.98], "pass",
         "2.0% less time per step (1.9% to 2.1%; 5 pairs), within the limit of 3%"),
        ([1.02, 1.021, 1.019, 1.02, 1.02], "pass",
         "2.0% more time per step (1.9% to 2.1%; 5 pairs), within the limit of 3%"),
        ([1.1, 1.1, 1.12, 1.1, 1.1], "regressed",
         "10.4% more time per step (9.1% to 11.7%; 5 pairs; limit 3%)"),
        ([0.5, 0.5, 0.5, 0.5, 0.5], "improved",
         "50.0% less time per step (50.0% to 50.0%; 5 pairs; limit 3%)"),
        ([1.0302, 1.0302, 1.0304, 1.0302, 1.0302], "regressed",
         "3.02% more time per step (3.01% to 3.04%; 5 pairs; limit 3%)"),
        ([1.0298, 1.0298, 1.0297, 1.0298, 1.0298], "pass",
         "2.98% more time per step (2.97% to 2.98%; 5 pairs), within the limit of 3%"),
    ],
)  # fmt: skip
def test_what_is_told_of_a_pace(ratios, word, said):
    found = findings_of(of_ratios(ratios))["tokens_per_s"]
    assert (found.word, found.said) == (word, said)


def test_what_is_not_told_yet_says_what_it_takes():
    unsteady = [1.0, 1.2, 0.9, 1.1, 0.95] * 4
    found = findings_of(of_ratios(unsteady), minutes_per_pair=0.5)["tokens_per_s"]
    assert found.word == "inconclusive"
    assert found.said.startswith(
        "from 4.9% less time per step to 9.6% more time per step after 20 pairs: too wide for 3%; "
    )
    assert f"about {found.needed} pairs" in found.said
    assert f"about {round((found.needed - 20) / 2)} more minutes" in found.said
    assert "gate.max_pairs" in found.said
    out_of_time = findings_of(of_ratios([1.0, 1.04, 1.0, 1.05]))["tokens_per_s"]
    assert out_of_time.word == "inconclusive"
    assert f"{out_of_time.needed} pairs" in out_of_time.said
    assert out_of_time.said.endswith("raise gate.minutes")
    hopeless = findings_of(of_ratios([1.0, 1e9, 1e-9, 1.0] * 5))["tokens_per_s"]
    assert "10,000 or more pairs" in hopeless.said


# efficiency beside the pace


def scaled_times(one: float, many: float, wobble: float = 0.002):
    """Return the findings where a step on one device, and on all, takes that many times as long."""
    noise = [1 + wobble * sign for sign in (1, -1, 1, -1, 1, -1)]
    return findings_of(of_ratios([many * n for n in noise]), of_ratios([one / n for n in noise], ONE))


def verdict_of(found: dict[str, MetricFinding]) -> str:
    return worst_verdict([one.word for one in found.values()])


def test_compute_that_is_slower_scales_better_and_is_regressed():
    """Of 125 ms on all devices 25 are communication: 10 ms more of computing."""
    found = scaled_times(one=1.10, many=135 / 125)
    assert (found["efficiency"].ratio or 0) < 1
    assert verdict_of(found) == found["tokens_per_s"].word == "regressed"


def test_compute_that_is_faster_scales_worse_and_is_diluted():
    found = scaled_times(one=0.70, many=95 / 125)
    assert (found["efficiency"].ratio or 0) > 1.05
    assert found["efficiency"].said.startswith("diluted, not a regression: 8.6% less efficient")
    assert verdict_of(found) not in FAILING_VERDICTS


def test_a_gain_is_diluted_even_where_communication_leaves_too_little_of_it_to_count():
    """Of 300 ms on all devices 200 are communication: one computes 8 ms faster."""
    found = scaled_times(one=0.92, many=292 / 300)
    assert found["tokens_per_s"].word == "pass"
    assert "diluted" in found["efficiency"].said
    assert verdict_of(found) not in FAILING_VERDICTS


def test_a_pace_that_is_not_gated_still_tells_what_is_diluted():
    noise = [1.002, 0.998, 1.002, 0.998, 1.002, 0.998]
    own = replace(GATE.tolerances, tokens_per_s=None)
    pairs = of_ratios([0.76 * n for n in noise])
    found = findings_of(pairs, of_ratios([0.70 / n for n in noise], ONE), own)
    assert "tokens_per_s" not in found
    assert found["efficiency"].word == "pass"


def test_an_efficiency_lost_to_communication_is_regressed_with_the_pace():
    found = scaled_times(one=1.0, many=1.10)
    assert found["efficiency"].word == found["tokens_per_s"].word == "regressed"


def test_a_gain_of_one_device_that_all_together_do_not_have_is_told_and_passes():
    """Nobody lost anything: the audit's case failed the gate."""
    found = scaled_times(one=0.90, many=1.0)
    assert found["tokens_per_s"].word == "pass"
    assert (found["efficiency"].word, found["efficiency"].notable) == ("pass", True)
    assert found["efficiency"].said.endswith("one device became faster, all devices together did not")
    assert found["efficiency"].ratio == pytest.approx(1 / 0.9, rel=1e-2)


def test_an_efficiency_that_is_uncertain_is_bounded_by_what_all_devices_lost():
    one, many = [1.0, 1.25, 0.8, 1.2, 0.9] * 4, [1.0, 1.005, 0.995, 1.0, 1.0] * 4
    found = findings_of(of_ratios(many), of_ratios(one, ONE))["efficiency"]
    assert found.word == "pass" and found.needed == 0
    assert found.said.startswith(
        "all devices together lose 0.2% at most (97.5% bound); efficiency alone is uncertain"
    )
    lost = findings_of(of_ratios([1.06 * ratio for ratio in many]), of_ratios(one, ONE))["efficiency"]
    assert lost.word == "inconclusive"


def test_a_tolerance_of_the_efficiency_below_that_of_the_pace_has_its_own_say():
    """2 % lost between devices: too little for the throughput's 3 %, too much for 1 % of the efficiency."""
    noise = [1.001, 0.999, 1.001, 0.999, 1.001, 0.999]
    pairs, base = of_ratios([1.02 * n for n in noise]), of_ratios(noise[::-1], ONE)
    found = findings_of(pairs, base, replace(GATE.tolerances, efficiency=0.01))
    assert (found["tokens_per_s"].word, found["efficiency"].word) == ("pass", "regressed")


def test_the_throughput_decides_when_a_series_ends_if_it_decides_the_verdict():
    one, many = [1.0, 1.25, 0.8, 1.2, 0.9] * 4, [1.0, 1.005, 0.995, 1.0, 1.0] * 4
    measured = CasePairs(of_ratios(many[:5]), of_ratios(one[:5], ONE))
    assert metric_rules.is_decided(measured, metric_rules.paired_rules(GATE, GATE.tolerances))
    alone = replace(GATE.tolerances, tokens_per_s=None)
    slower = CasePairs(of_ratios([1.2 * ratio for ratio in many[:5]]), of_ratios(one[:5], ONE))
    assert not metric_rules.is_decided(slower, metric_rules.paired_rules(GATE, alone))


def test_neither_misleads_on_a_typical_machine():
    """The reference's example: communication is 25 ms of 125; compute 10 % slower, or 20 % faster."""
    drawn = launch_noise.blocks(launch_noise.TYPICAL, 200, 20, np.random.default_rng(12))
    rule = metric_rules.paired_rules(GATE, GATE.tolerances)

    def share_failing(one: float, many: float) -> float:
        failing = 0
        for series in np.exp(drawn):
            ratios = [
                of_ratios((series[:, i] * by).tolist(), case)
                for i, by, case in ((0, one, ONE), (1, many, MANY))
            ]
            ended = next(
                n
                for n in range(1, 21)
                if metric_rules.is_decided(CasePairs(ratios[1][:n], ratios[0][:n]), rule)
            )
            failing += verdict_of(findings_of(ratios[1][:ended], ratios[0][:ended])) in FAILING_VERDICTS
        return failing / len(drawn)

    assert share_failing(one=1.10, many=135 / 125) >= 0.98
    assert share_failing(one=1 / 1.2, many=(100 / 1.2 + 25) / 125) <= 0.01


# counted numbers


@pytest.mark.parametrize(
    ("before", "after", "word", "said"),
    [
        (1e9, 1e9, "pass", "unchanged"),
        (1e9, 1e9 + 1, "regressed", "1,000,000,001 B, was 1,000,000,000 B (limit 0%)"),
        (1e9, 1e9 - 1, "improved", "999,999,999 B, was 1,000,000,000 B"),
        (0.0, 0.0, "pass", "unchanged"),
        (0.0, 1.0, "regressed", "1 B, was 0 B (limit 0%)"),
        (1.0, 0.0, "improved", "0 B, was 1 B"),
        (1.0, math.nan, "invalid", "nan in the candidate, which is not a count"),
        (1.0, math.inf, "invalid", "inf in the candidate, which is not a count"),
        (1.0, -1.0, "invalid", "-1 in the candidate, which is not a count"),
        (math.nan, 1.0, "incomparable", "nan in the baseline, which is not a count"),
        (5.0, None, "missing", "measured in the baseline, absent in the candidate: nothing tells it"),
    ],
)
def test_what_is_counted_is_gated_exactly(before, after, word, said):
    found = counted_finding(comm_bytes=(before, after))["comm_bytes"]
    assert (found.word, found.said) == (word, said)


def test_what_is_counted_has_its_tolerance():
    own = replace(GATE.tolerances, comm_bytes=0.01)
    assert counted_finding(own, comm_bytes=(1000.0, 1010.0))["comm_bytes"].word == "pass"
    assert counted_finding(own, comm_bytes=(1000.0, 1010.1))["comm_bytes"].word == "regressed"
    assert counted_finding(own, comm_bytes=(1010.0, 1000.0))["comm_bytes"].word == "pass"
    assert counted_finding(own, comm_bytes=(1011.0, 1000.0))["comm_bytes"].word == "improved"


# the peak memory


def memory(*peaks: tuple[float, float]) -> MetricFinding:
    return findings_of(paired_memory(peaks))["peak_memory"]


def test_a_memory_that_is_the_same_in_every_trial_is_judged_by_its_tolerance():
    assert [memory(*[(1.0, after)] * 3).word for after in (1.0, 1.009, 1.011, 0.98)] == [
        *("pass", "pass", "regressed", "improved")
    ]
    assert memory(*[(1.0, 1.0)] * 3).said == "unchanged"
    assert memory(*[(1.0, 1.02)] * 3).said.startswith("996 KiB, was 977 KiB: 2.0% more memory")


def test_a_memory_of_two_levels_is_not_judged_by_where_a_median_falls():
    """FSDP2 on gloo peaks at one of two levels 2.8 % apart: the audit's equal arms."""
    mixed = [(1.0, 1.028), (1.028, 1.028), (1.0, 1.0), (1.0, 1.028), (1.028, 1.0)]
    assert memory(*mixed).word == "inconclusive"
    assert memory(*mixed * 4).word == "pass"
    assert "up to " in memory(*mixed * 4).said


def test_a_higher_memory_is_confirmed_by_a_fresh_series():
    first, second = (
        findings_of(paired_memory([(1.0, 1.028)] * 3)),
        findings_of(paired_memory([(1.0, 1.0)] * 3)),
    )
    found = {one.metric: one for one in confirm([*first.values()], [*second.values()])}["peak_memory"]
    assert (found.word, found.notable) == ("pass", True)
    found = {one.metric: one for one in confirm([*first.values()], [*first.values()])}["peak_memory"]
    assert found.word == "regressed" and found.said.startswith("confirmed by a fresh series: ")


def test_what_the_baseline_does_not_tell_is_not_gated():
    assert "comm_bytes" not in counted_finding(comm_bytes=(None, None))
    assert "comm_bytes" not in counted_finding(comm_bytes=(None, 5.0))


def test_what_is_not_gated_is_not_told():
    nothing = Tolerances(*[None] * 6)
    assert findings_of(of_ratios([2.0] * 5), of_ratios([1.0] * 5, ONE), nothing) == {}


def test_one_trial_that_is_no_number_is_not_outvoted():
    pairs = [(trial(1.0), trial(1.0, comm_bytes=value)) for value in (1e6, math.nan, 1e6, 1e6, 1e6)]
    assert findings_of(pairs)["comm_bytes"].word == "invalid"
    pairs = [(trial(1.0), trial(1.0, memory_peak=value)) for value in (1e6, math.nan, 1e6, 1e6, 1e6)]
    assert findings_of(pairs)["peak_memory"].word == "invalid"
    assert findings_of([(after, before) for before, after in pairs])["peak_memory"].word == "incomparable"


# causes


def cause_of(one: float, **changes: tuple[float, float]) -> str:
    """Return the cause where all devices are 10 % slower, and one device takes that many times as long."""
    pairs = [
        tuple(
            trial(step, **{key: value[side] for key, value in changes.items()})
            for side, step in ((0, 1.0), (1, 1.1))
        )
        for _ in range(5)
    ]
    base = findings_of(of_ratios([one, one * 1.001] * 3, ONE))["tokens_per_s"]
    return likely_cause(findings_of(pairs)["tokens_per_s"], base, pairs)


@pytest.mark.parametrize(
    ("one", "changes", "told"),
    [
        (1.10, {}, "computation: a step of a single device takes 10.1% more time, too"),
        (1.0, {}, "communication or imbalance: "),
        (1.0, {"comm_calls": (13.0, 26.0), "comm_bytes": (2**20, 2**21)},
         "26 collectives, was 13; 2.00 MiB, was 1.00 MiB"),
        (1.0, {"imbalance": (1.01, 1.25)}, "1.25x the mean work, was 1.01x"),
        (1.0, {"profile_backward_s": (0.1, 0.2), "profile_data_s": (0.1, 0.101)},
         "longer by 100 ms in the backward pass"),
    ],
)  # fmt: skip
def test_where_a_pace_is_lost(one, changes, told):
    assert told in cause_of(one, **changes)


def test_fewer_collectives_are_no_cause():
    assert "collectives" not in cause_of(1.0, comm_calls=(26.0, 13.0), comm_bytes=(2.0, 1.0))


@given(any_time, any_time)
def test_whatever_a_profile_holds_is_no_crash(before, after):
    hostile = dict.fromkeys(("imbalance", "profile_data_s", "comm_calls", "comm_bytes"), (before, after))
    assert cause_of(1.0, **hostile).isprintable()


def test_what_is_not_slower_has_no_cause():
    pairs = of_ratios([1.0, 1.001] * 3)
    pace = findings_of(pairs)["tokens_per_s"]
    assert likely_cause(pace, pace, pairs) == ""
    assert likely_cause(None, None, []) == ""


# a fresh series


def slowed_by(*ratios: float) -> list[MetricFinding]:
    return list(findings_of(of_ratios(ratios)).values())


def test_what_two_series_call_slower_is_told_with_the_numbers_of_the_second():
    first, second = slowed_by(1.30, 1.31, 1.29, 1.30, 1.30), slowed_by(1.10, 1.11, 1.09, 1.10, 1.10)
    pace = next(one for one in confirm(first, second) if one.metric == "tokens_per_s")
    assert pace.word == "regressed"
    assert pace.ratio == pytest.approx(1.1, abs=1e-3)
    assert pace.said.startswith("confirmed by a fresh series: ")
    assert "30.0%" in pace.said, "what was flagged is told too"


def test_what_a_fresh_series_does_not_call_slower_is_none_and_is_told():
    found = confirm(slowed_by(1.30, 1.31, 1.29, 1.30, 1.30), slowed_by(1.0, 1.001, 0.999, 1.0, 1.0))
    pace = next(one for one in found if one.metric == "tokens_per_s")
    assert (pace.word, pace.notable) == ("pass", True)
    assert "not confirmed by a fresh series" in pace.said
    assert pace.high > 1.3
    assert "the first series can't exclude up to 31.0% more time per step" in pace.said


def test_a_gain_takes_two_series_as_a_loss_does():
    """Of 20 equal cases, 27 to 73 % of gates used to praise one."""
    gain, none = slowed_by(0.80, 0.81, 0.79, 0.80, 0.80), slowed_by(1.0, 1.001, 0.999, 1.0, 1.0)
    loss, unsteady = slowed_by(1.2, 1.21, 1.19, 1.2, 1.2), slowed_by(1.0, 1.2, 0.9, 1.1, 0.95)
    assert confirm(gain, gain)[0].word == "improved"
    assert confirm(gain, none)[0].word == confirm(gain, unsteady)[0].word == "pass"
    assert confirm(gain, loss)[0].word == confirm(loss, gain)[0].word == "inconclusive"
    alone = mark_unconfirmed(gain[0])
    assert (alone.word, alone.notable) == ("pass", True)


def test_a_gain_is_as_large_in_words_as_in_the_table():
    pace = slowed_by(0.9416, 0.9417, 0.9418, 0.9417, 0.9417)[0]
    assert pace.said.startswith("5.8% less time per step (5.8% to 5.8%;")


def test_what_was_not_flagged_stays_as_the_first_series_says():
    first = slowed_by(1.0, 1.001, 0.999, 1.0, 1.0)
    assert confirm(first, slowed_by(1.30, 1.31, 1.29, 1.30, 1.30)) == first
