"""Mixtures of experts: what they compute and cost, and expert parallelism, which spreads the experts."""

from pathlib import Path
from typing import Any

import pytest

from distbench.adopt import export_case
from distbench.core import registry
from distbench.core.case import Batch, Case, PluginChoice
from distbench.core.errors import UsageError
from distbench.jobs.equivalence.arms import DIFFERS, ROUNDING
from distbench.metrics.base import NotAvailable, TrialData
from distbench.metrics.experts import ExpertLoad
from distbench.record.run_folder import Run
from distbench.strategies.ep import ExpertParallel
from distbench.workloads.base import Workload
from support.planned_suites import planned
from support.records import case
from support.suites import SuiteText
from support.theory_checks import assert_by_theory, assert_same_training, bytes_by_operation, measured_trials

D, F, S, L, E, K = 16, 24, 10, 2, 4, 2
OPTIONS = {
    "dim": D,
    "depth": L,
    "heads": 2,
    "kv_heads": 1,
    "ffn_dim": F,
    "vocab_size": 256,
    "seq_len": S,
    "experts": E,
    "tied": True,
}
MODEL = SuiteText(
    f"{{transformer: {{{', '.join(f'{key}: {str(value).lower()}' for key, value in OPTIONS.items())}}}}}"
)
EXPERT = 3 * D * F
ATTENTION = 2 * D * (2 + 1) * D // 2
BLOCK = ATTENTION + 2 * D + E * D + E * EXPERT


def model(**options: Any) -> Workload:
    made: Workload = registry.create_plugin("workloads", PluginChoice("transformer", OPTIONS | options))
    return made


def test_all_experts_are_parameters_and_those_of_a_token_are_work():
    assert model().parameters() == L * BLOCK + 256 * D + D
    others = L * (E - K) * EXPERT
    attention = 12 * L * D * S
    assert model().flops_per_sample() == S * (6 * (L * BLOCK + 256 * D + D - others) + attention)
    # capacity drops tokens, and is no other model
    assert model(capacity_factor=1.0).flops_per_sample() == model().flops_per_sample()


def test_moe_tiny_is_as_much_work_as_tiny_but_for_its_router():
    tiny, mixed = (
        registry.create_plugin("workloads", PluginChoice("transformer", {"preset": name}))
        for name in ("tiny", "moe-tiny")
    )
    router = 4 * 8 * 128
    assert mixed.flops_per_sample() == tiny.flops_per_sample() + 6 * router * 128
    assert mixed.parameters() == pytest.approx(3.4e6, rel=0.01)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"experts": 2, "top_k": 3}, "top_k = 3 is more than experts = 2"),
        ({"experts": None, "top_k": 2}, "top_k: the model has no experts; set experts, or preset: moe-tiny"),
        ({"experts": None, "capacity_factor": 1.5}, "capacity_factor: the model has no experts"),
    ],
)
def test_impossible_experts_have_a_name(options, why):
    assert why in (model(**options).problem() or "")


def refusal_reason(folder: Path, strategy: str, world_size: int, **changed: str) -> str:
    """Why the only case of *strategy* can't run; empty if it can."""
    sections = {"workload": MODEL, "batch": "{global_batch_size: 8}", **changed}
    return planned(folder, strategy, world_size, **sections).problem or ""


@pytest.mark.parametrize(
    ("strategy", "world_size", "changed", "why"),
    [
        ("ep: {}", 2, {}, ""),
        ("ep: {mesh: {ep: 2}}", 8, {}, ""),
        (
            "ep: {}",
            8,
            {},
            "experts = 4 is not divisible by 8; numbers of devices that divide experts = 4: 1, 2, 4",
        ),
        ("ep: {mesh: {ep: 4}}", 2, {}, "mesh: {ep: 4}: 4 does not divide the world size, 2; dp_replicate"),
        (
            "ep: {}",
            2,
            {"workload": "{mlp: {}}"},
            "the workload mlp has no experts; use transformer with preset: moe",
        ),
        (
            "ep: {}",
            2,
            {"workload": "{user: {model: 'models.small:Small', length: 32}}"},
            "does not declare which modules are routers and which contain the stacked experts",
        ),
        ("ep: {}", 2, {"compile": "true"}, "compile is not supported with expert parallelism"),
        ("ep: {}", 2, {"optimizer": "adafactor"}, "optimizer.name = adafactor"),
        (
            "cp: {}",
            2,
            {"workload": MODEL.replace("experts: 4", "experts: 4, capacity_factor: 1.5")},
            "capacity_factor needs whole sequences",
        ),
        ("tp: {}", 2, {}, "experts can't be split (experts = 4); use ep, which distributes them"),
    ],
)
def test_what_can_not_be_spread_is_refused_with_the_numbers(strategy, world_size, changed, why, tmp_path):
    found = refusal_reason(tmp_path, strategy, world_size, **changed)
    assert why in found
    assert bool(why) == bool(found)


def expert_case(
    strategy: str, world_size: int, options: dict[str, Any] | None = None, **changed: Any
) -> Case:
    """A case of *strategy* on the small model, in fp32, in two micro-batches."""
    workload = PluginChoice("transformer", OPTIONS | changed.pop("model", {}))
    batch = Batch(8, 8 // world_size // 2, 2)
    return case(
        strategy,
        world_size,
        strategy=PluginChoice(strategy, options or {}),
        workload=workload,
        batch=batch,
        **changed,
    )


PARAMETERS = L * BLOCK + 256 * D + D
REST, EXPERTS = PARAMETERS - L * E * EXPERT, L * E * EXPERT
# the number of tokens of each expert, of two micro-batches
COUNTS = L * E * 8 * 2


@pytest.mark.parametrize(
    ("world_size", "mesh", "changed", "moved"),
    [
        (2, {}, {}, {"all_reduce": REST * 4, "all_to_all": 4 * L * 4 * S * K * D * 4 + COUNTS}),
        # what is computed again is sent again
        (
            2,
            {},
            {"activation_checkpointing": "full"},
            {"all_reduce": REST * 4, "all_to_all": 6 * L * 4 * S * K * D * 4 + 2 * COUNTS},
        ),
        # two copies of the experts, whose gradients are summed
        (
            4,
            {"ep": 2},
            {},
            {"all_reduce": (REST + EXPERTS // 2) * 4, "all_to_all": 4 * L * 2 * S * K * D * 4 + COUNTS},
        ),
        # an expert has room for 1.5 x 2 x 10 / 4 tokens of a sample, rounded up, and all of it is sent
        (
            2,
            {},
            {"model": {"capacity_factor": 1.5}},
            {"all_reduce": REST * 4, "all_to_all": 4 * L * 4 * E * 8 * D * 4 + COUNTS},
        ),
        (2, {"ep": 1}, {}, {"all_reduce": PARAMETERS * 4}),
        (1, {}, {}, {}),
    ],
)
def test_tokens_go_to_their_experts_and_back_and_so_do_gradients(world_size, mesh, changed, moved):
    assert (
        bytes_by_operation(
            ExpertParallel(mesh), expert_case("ep", world_size, {"mesh": mesh}, **changed), PARAMETERS
        )
        == moved
    )


def test_a_rank_keeps_the_states_of_its_experts_and_of_all_else():
    states = ExpertParallel().model_states(expert_case("ep", 4), PARAMETERS)
    assert states is not None
    assert states["optimizer_state"] == (REST + EXPERTS // 4) * 8


def test_no_format_says_how_experts_are_spread():
    with pytest.raises(UsageError, match="ep: "):
        export_case("torchtitan", expert_case("ep", 2), {})


@pytest.mark.train
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_work_of_experts_is_what_torch_counts(top_k):
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from distbench.strategies.torch_engine.modules import checkpoint_layers

    one, counts = model(top_k=top_k), {}
    for kind in ("none", "full"):
        module = one.module()
        assert sum(parameter.numel() for parameter in module.parameters()) == one.parameters()
        checkpoint_layers(case("single", activation_checkpointing=kind), one.layers(module))
        with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
            one.loss(module, batch(2)).backward()
        counts[kind] = counter.get_total_flops() / 2
    assert counts["none"] == pytest.approx(one.flops_per_sample(), rel=0.03)
    assert counts["full"] - counts["none"] == pytest.approx(one.recomputed_flops_per_sample(), rel=0.03)


def batch(rows: int) -> Any:
    import torch

    ids = torch.randint(256, (rows, S + 1), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids[:, :-1], "labels": ids[:, 1:]}


def routed_module(one: Workload) -> Any:
    """The module of *one* in fp64, its weights large enough for tokens to go different ways."""
    import torch

    torch.manual_seed(0)
    module = one.module().double()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return module


@pytest.mark.train
@pytest.mark.parametrize("capacity_factor", [None, 0.5])
def test_a_sample_is_computed_alike_beside_others_and_whatever_comes_after(capacity_factor):
    import torch

    module, ids = routed_module(model(capacity_factor=capacity_factor)), batch(3)["input_ids"]
    together = module(ids)
    torch.testing.assert_close(together[1:2], module(ids[1:2]))
    changed = ids.clone()
    changed[:, S // 2 :] = 0
    torch.testing.assert_close(together[:, : S // 2], module(changed)[:, : S // 2])


@pytest.mark.train
def test_room_for_all_drops_nothing_and_little_room_does():
    import torch

    one, ids = model(), batch(3)["input_ids"]
    module, roomy, tight = (
        routed_module(one),
        routed_module(model(capacity_factor=9.0)),
        routed_module(model(capacity_factor=0.5)),
    )
    torch.testing.assert_close(module(ids), roomy(ids))
    assert (module(ids) - tight(ids)).abs().max() > 1e-3


@pytest.mark.train
def test_of_equal_scores_the_first_experts_win():
    import torch

    router = model().module().blocks[0].ffn.router
    weights, chosen = router(torch.zeros(1, 3, D))
    assert chosen.tolist() == [[[0, 1]] * 3]
    assert weights.tolist() == [[[0.5, 0.5]] * 3]


@pytest.mark.train
def test_an_expert_without_tokens_has_a_gradient_of_zero():
    import torch

    module = model(top_k=1).module()
    with torch.no_grad():
        for block in module.blocks:
            block.ffn.router.weight.zero_()
    one = model(top_k=1)
    one.loss(module, batch(2)).backward()
    used = module.blocks[0].ffn.experts.gate.grad.flatten(1).any(1)
    assert used.tolist() == [True, False, False, False]


CHECK_SUITE = SuiteText(f"""
workload: {MODEL}
batch: {{global_batch_size: 8, gradient_accumulation_steps: 2}}
launcher: {{kept: {{oversubscribe: true}}}}
""")


@pytest.mark.train
@pytest.mark.parametrize(
    ("world_size", "steps", "mesh", "bugs"),
    [
        pytest.param(2, 2, "", ("reduced-twice", "undivided"), id="parts"),
        pytest.param(
            4, 3, "mesh: {ep: 2}, ", ("apart", "local-clipping"), marks=pytest.mark.deep, id="copies"
        ),
    ],
)
def test_mistakes_of_expert_parallelism_are_found(world_size, steps, mesh, bugs, run_suite):
    done = run_suite(f"""{CHECK_SUITE}
world_sizes: [{world_size}]
optimizer: {{name: sgd, lr: 0.1, clip_grad_norm: 0.1}}
measure: {{trials: 0}}
check: {{steps: {steps}, perturbed: 4, fp64: false}}
strategies: [{{planted_ep: {{{mesh}bug: [none, {", ".join(bugs)}]}}}}]
""")
    assert done.found("planted-ep") == {"none": ROUNDING, **dict.fromkeys(bugs, DIFFERS)}


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize(
    ("precision", "recomputed", "capacity"),
    [("fp32", "none", "null"), ("bf16", "none", "null"), ("bf16", "full", "1.25"), ("fp32", "full", "0.5")],
)
def test_spread_experts_train_the_same_and_move_and_keep_what_theory_says(
    precision, recomputed, capacity, run_suite
):
    work = MODEL.replace("experts: 4", f"experts: 4, capacity_factor: {capacity}")
    done = run_suite(f"""{CHECK_SUITE.replace(MODEL, work)}
precision: {precision}
activation_checkpointing: {recomputed}
optimizer: {{clip_grad_norm: 0.1, weight_decay: 0.1}}
measure: {{warmup: 1, steps: 2, trials: 1}}
check: {{steps: 3, perturbed: 4, fp32: false, fp64: false}}
checkpoint: {{}}
world_sizes: [2, 4]
strategies: [ddp, fsdp, ep, {{ep: {{mesh: {{ep: 2}}}}}}]
exclude: [{{strategy: ep2, world_size: 2}}]
""")
    assert_same_training(done)
    spread = [each for each in measured_trials(done.folder) if each.case.strategy.name == "ep"]
    assert len(spread) == 3
    for record in spread:
        assert_by_theory(record)
        # all but the norm; uneven as the router is, no rank moves just that
        expected = pytest.approx(record.values["comm_bytes_theory"], rel=1e-3)
        assert record.values["comm_bytes"] == expected, record.case.name
        assert {row["ran"] for row in record.tables["collectives"]} == {"all_to_all", "all_reduce"}


@pytest.mark.train
@pytest.mark.deep
@pytest.mark.parametrize("capacity", ["null", "1.0"])
def test_the_load_of_experts_is_the_same_however_the_work_is_spread(capacity, run_suite):
    done = run_suite(f"""{CHECK_SUITE.replace("experts: 4", f"experts: 4, capacity_factor: {capacity}")}
world_sizes: [2]
activation_checkpointing: full
measure: {{warmup: 1, steps: 2, trials: 1}}
strategies: [single, ep, fsdp, {{pp: {{micro_batches: 4}}}}]
""")
    records = list(Run(done.folder).records())
    loads = [expert_load(record.tables["expert_load"]) for record in records]
    # every token of a step chooses its experts in every layer
    assert sum(loads[0].values()) == L * 8 * S * K
    assert all(load == loads[0] for load in loads)
    assert {record.values["expert_most"] for record in records} == {records[0].values["expert_most"]}
    assert all((record.values["expert_dropped"] > 0) == (capacity == "1.0") for record in records)


def expert_load(rows: list[dict[str, Any]]) -> dict[tuple[str, int], int]:
    """Tokens of all ranks by router and expert."""
    load: dict[tuple[str, int], int] = {}
    for row in rows:
        key = (row["router"], row["expert"])
        load[key] = load.get(key, 0) + row["tokens"]
    return load


def test_the_busiest_and_the_idlest_expert_are_told_relative_to_the_mean():
    rows = [
        {"router": "a", "expert": 0, "tokens": 6, "dropped": 1},
        {"router": "a", "expert": 1, "tokens": 0, "dropped": 0},
        {"router": "a", "expert": 1, "tokens": 2, "dropped": 0},
        {"router": "b", "expert": 0, "tokens": 4, "dropped": 1},
        {"router": "b", "expert": 1, "tokens": 4, "dropped": 0},
    ]
    trial = TrialData(expert_case("ep", 2), S, {}, {}, {"expert_load": rows})
    assert ExpertLoad().summary(trial) == {"expert_most": 1.5, "expert_least": 0.5, "expert_dropped": 2 / 16}
    with pytest.raises(NotAvailable, match="the workload has no experts"):
        ExpertLoad().summary(TrialData(expert_case("ep", 2), S, {}, {}))
