"""``data: user``: the rows of DistributedSampler for every division, and one message for each mistake."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.data.base import BatchFunction, DataShape, DataSource
from support.runs import MODELS

TOKENS = DataShape("tokens", 32, 256)
SEED, GLOBAL_BATCH = 5, 8
pytestmark = pytest.mark.train


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(MODELS))


def source(name: str, **options: object) -> DataSource:
    choice = PluginChoice("user", {"dataset": f"datasets_of_users:{name}", **options})
    made: DataSource = registry.create_plugin("data", choice)
    return made


def opened(name: str, shape: DataShape = TOKENS, **options: object) -> BatchFunction:
    one = source(name, **options)
    assert one.problem(shape) is None
    return one.open(shape, SEED, GLOBAL_BATCH)


def hashes(batches: BatchFunction, step: int, rows: range) -> list[bytes]:
    arrays = batches(step, rows)
    return [b"".join(arrays[name][i].tobytes() for name in ("input_ids", "labels")) for i in range(len(rows))]


@pytest.mark.parametrize(
    "name", ["Rows", "AsTuples", "AsLists", "AtOnce", "Augmented", "Stream", "Unpicklable"]
)
def test_each_division_of_a_batch_has_its_rows_in_any_order_of_reading(name):
    whole = {step: hashes(opened(name), step, range(8)) for step in range(12)}
    batches = opened(name)
    for step in (0, 7, 11, 3, 9):
        parts = [hashes(batches, step, range(first, first + 2)) for first in (6, 0, 4, 2)]
        assert [each for part in (parts[1], parts[3], parts[2], parts[0]) for each in part] == whole[step]
    assert len({each for step in range(3) for each in whole[step]}) == 24, "and no row twice"


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_have_the_rows_of_distributed_sampler(ranks, drop_last):
    from datasets_of_users import Rows  # type: ignore[import-not-found]
    from torch.utils.data.distributed import DistributedSampler

    batches = opened("odd", last_batch="drop" if drop_last else "pad")
    per_rank = GLOBAL_BATCH // ranks
    steps = source("odd", last_batch="drop" if drop_last else "pad").steps_per_epoch(GLOBAL_BATCH, TOKENS)
    assert steps == (7 if drop_last else 8)
    for epoch in (0, 1, 2):
        samplers = [
            DistributedSampler(Rows(61), ranks, r, seed=SEED, drop_last=drop_last) for r in range(ranks)
        ]
        for sampler in samplers:
            sampler.set_epoch(epoch)
        orders = [[*sampler] for sampler in samplers]
        # the sampler pads to a multiple of the ranks, and a global batch is always whole
        for step in range(7):
            wanted = [
                Rows(61)[i]["input_ids"].tobytes()
                for order in orders
                for i in order[step * per_rank : (step + 1) * per_rank]
            ]
            found = batches(epoch * steps + step, range(8))["input_ids"]
            assert sorted(each.tobytes() for each in found) == sorted(wanted)


def test_the_last_batch_is_padded_with_the_first_rows_of_its_epoch():
    batches = opened("odd", last_batch="pad")
    first, last = hashes(batches, 0, range(8)), hashes(batches, 7, range(8))
    assert last[5:] == first[:3]
    assert hashes(batches, 8, range(8)) != first, "the next epoch has another order"
    unshuffled = opened("odd", last_batch="pad", shuffle=False)
    assert hashes(unshuffled, 8, range(8)) == hashes(unshuffled, 0, range(8))


def test_a_stream_goes_on_at_its_beginning_in_its_next_epoch():
    from datasets_of_users import TOKENS as EACH

    ids = [opened("Stream")(step, range(8))["input_ids"] for step in range(5)]
    order = [*range(30), *(1 + index for index in range(10))]
    assert np.array_equal(np.concatenate(ids), EACH[order, :-1])
    assert source("Stream").max_workers() == 1
    assert source("Rows").max_workers() is None
    assert source("Stream").steps_per_epoch(8, TOKENS) is None


def test_random_rows_leave_the_generators_as_they_were():
    import torch

    batches = opened("Augmented")
    before = torch.get_rng_state()
    drawn = hashes(batches, 0, range(8))
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    assert hashes(batches, 0, range(8)) == drawn
    of_epochs = [batches(step, range(8))["input_ids"] for step in range(16)]
    assert len({each.tobytes() for batch in of_epochs for each in batch}) == 128, "other draws in each epoch"


@pytest.mark.parametrize("name", ["Flipped", "Shuffled", "Augmented"])
def test_rows_that_draw_are_the_same_whatever_was_drawn_and_read_before(name):
    import random

    import torch

    seen = set()
    for seed in range(20):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        batches = opened(name)
        if seed % 2:
            batches(5, range(3))
        seen.add(tuple(hashes(batches, 2, range(8))))
        assert random.random() == random.Random(seed).random(), "the generators are as they were"
    assert len(seen) == 1


def test_a_random_split_is_the_same_in_each_process():
    import random

    from distbench.data._dataset import load_dataset

    seen = set()
    for seed in range(4):
        random.seed(seed)
        np.random.seed(seed)
        load_dataset.cache_clear()
        seen.add(tuple(hashes(opened("drawn_split"), 0, range(8))))
    assert len(seen) == 1


def test_a_stream_with_a_length_is_a_stream():
    assert source("Sized").max_workers() == 1
    assert len(hashes(opened("Sized"), 9, range(8))) == 8


def test_numbers_of_labels_are_compared_between_calls():
    batches = opened("Unequal")
    with pytest.raises(ValueError, match="set weigh_labels: true"):
        for row in range(8):
            batches(0, range(row, row + 1))


def test_features_of_any_float_are_taken_and_labels_that_do_not_count_are_refused():
    features = DataShape("features", 32, 4)
    found = opened("Bf16", features, shuffle=False)(1, range(8))
    assert found["features"].dtype == np.float32
    assert [*found["features"][:, 0]] == [*range(8, 16)]
    assert [*found["labels"]] == [0, 1, 2, 3] * 2
    with pytest.raises(ValueError, match="a row has no label other than -100"):
        opened("Ignored", features)(0, range(8))


@pytest.mark.parametrize("name", ["Unshifted", "Unlabelled"])
def test_labels_are_shifted_on_request(name):
    found = opened(name, shift_labels=True)(0, range(8))
    assert np.array_equal(found["labels"][:, :-1], found["input_ids"][:, 1:])
    assert set(found["labels"][:, -1]) == {-100}


def test_rows_of_unequal_length_are_filled_with_what_has_no_label():
    from datasets_of_users import TOKENS as EACH

    one = source("Tokens", padding="max_length", pad_token_id=9, shift_labels=True, shuffle=False)
    assert one.weighs_labels
    found = one.open(TOKENS, SEED, GLOBAL_BATCH)(1, range(8))
    for index, ids, labels in zip(range(8, 16), found["input_ids"], found["labels"], strict=True):
        length = 8 + index
        assert np.array_equal(ids, [*EACH[index, :length], *[9] * (32 - length)])
        assert np.array_equal(labels, [*EACH[index, 1:length], *[-100] * (33 - length)])


@pytest.mark.parametrize(
    ("multiple", "rows", "length"),
    [(None, range(8), 23), (None, range(3), 18), (8, range(8), 24), (8, range(1), 16), (20, range(8), 32)],
)
def test_rows_are_filled_up_to_the_longest_of_those_that_are_read(multiple, rows, length):
    from datasets_of_users import TOKENS as EACH

    options = {"pad_token_id": 9, "shift_labels": True, "shuffle": False, "pad_to_multiple_of": multiple}
    one = source("Tokens", padding="longest", **options)
    assert (one.weighs_labels, one.length_multiple) == (True, multiple or 1)
    # rows 8 to 15 have 16 to 23 tokens, and the workload takes 32
    found = one.open(TOKENS, SEED, GLOBAL_BATCH)(1, rows)
    assert found["input_ids"].shape == found["labels"].shape == (len(rows), length)
    filled = source("Tokens", padding="max_length", pad_token_id=9, shift_labels=True, shuffle=False)
    whole = filled.open(TOKENS, SEED, GLOBAL_BATCH)(1, rows)
    for name, array in found.items():
        assert np.array_equal(array, whole[name][:, :length])
    assert [int((row != -100).sum()) for row in found["labels"]] == [15 + i for i in rows]
    assert np.array_equal(found["input_ids"][0, :16], EACH[8, :16])


@pytest.mark.parametrize("padding", ["max_length", "longest"])
def test_a_row_that_is_longer_than_the_workload_or_empty_is_refused(padding):
    shorter = DataShape("tokens", 16, 256)
    with pytest.raises(ValueError, match="but the workload takes 16; set its length"):
        opened("Tokens", shorter, padding=padding, shift_labels=True)(1, range(8))
    with pytest.raises(ValueError, match="a row has no tokens; leave such rows out"):
        opened("WithEmpty", padding=padding, shift_labels=True, shuffle=False)(0, range(8))


def lengths_of(batches: BatchFunction, step: int) -> list[int]:
    return [int((row != -100).sum()) + 1 for row in batches(step, range(8))["labels"]]


@pytest.mark.parametrize("last_batch", ["drop", "pad"])
def test_batches_have_rows_of_like_length_and_each_row_once_an_epoch(last_batch):
    options = {"padding": "longest", "shift_labels": True, "last_batch": last_batch}
    plain = opened("many_tokens", **options)
    grouped = opened("many_tokens", group_by_length=True, **options)
    steps = source("many_tokens", **options).steps_per_epoch(GLOBAL_BATCH, TOKENS) or 0
    assert steps == (62 if last_batch == "drop" else 63)
    spread = {}
    for name, batches in {"plain": plain, "grouped": grouped}.items():
        lengths = [lengths_of(batches, step) for step in range(steps)]
        spread[name] = np.mean([max(each) - min(each) for each in lengths])
        assert np.std([np.mean(each) for each in lengths[: steps // 2]]) > 0, "batches in no order of length"
    assert spread["grouped"] < spread["plain"] / 4
    for epoch in (0, 1):
        whole = range(epoch * steps, (epoch + 1) * steps)
        of_epoch = [sorted(each for step in whole for each in rows_of(one, step)) for one in (plain, grouped)]
        assert of_epoch[0] == of_epoch[1], "the rows of DistributedSampler, in another order"
    assert rows_of(grouped, 0) != rows_of(grouped, steps), "each epoch is grouped anew"


def rows_of(batches: BatchFunction, step: int) -> list[tuple[int, ...]]:
    """Rows of a step without what fills them."""
    return [
        tuple(row[: length - 1])
        for row, length in zip(
            batches(step, range(8))["input_ids"].tolist(), lengths_of(batches, step), strict=True
        )
    ]


def test_no_rank_has_the_longest_rows_of_grouped_batches():
    batches = opened("many_tokens", padding="longest", shift_labels=True, group_by_length=True)
    halves = [lengths_of(batches, step) for step in range(62)]
    longer = [sum(each[:4]) - sum(each[4:]) for each in halves]
    assert min(longer) < 0 < max(longer)


def test_batches_of_an_epoch_come_in_no_order_of_length():
    batches = opened("many_tokens", padding="longest", shift_labels=True, group_by_length=True)
    means = [np.mean(lengths_of(batches, step)) for step in range(62)]
    falls = np.mean(np.diff(means) < 0)
    assert 0.3 < falls < 0.7


@pytest.mark.parametrize("name", ["many_tokens", "with_column", "AtOnce", "AsTuples", "AsLists", "Augmented"])
def test_grouped_rows_are_the_same_for_each_division_and_whatever_was_drawn(name):
    import torch

    from distbench.data._dataset import row_lengths

    options = {"padding": "longest", "group_by_length": True, "weigh_labels": True}
    options |= {"shift_labels": True} if "Tokens" in name or name in ("many_tokens", "with_column") else {}
    whole = opened(name, **options)(3, range(8))["labels"]
    torch.manual_seed(7)
    row_lengths.cache_clear()
    before = torch.get_rng_state()
    batches = opened(name, **options)
    assert torch.equal(before, torch.get_rng_state())
    for rows in (range(4, 8), range(4)):
        part = batches(3, rows)["labels"]
        assert np.array_equal(part, whole[rows.start : rows.stop, : part.shape[1]])


def test_lengths_are_those_of_the_column_of_that_name():
    from distbench.data._dataset import row_lengths

    assert [*row_lengths("datasets_of_users:with_column")[:4]] == [8, 9, 10, 11]


def test_packed_rows_hold_each_row_whole_and_once_with_labels_of_its_own():
    from datasets_of_users import TOKENS as EACH

    one = source("Tokens", packing=True, pad_token_id=9, shift_labels=True)
    assert (one.weighs_labels, one.packs_rows, one.length_multiple) == (True, True, None)
    packs = one.steps_per_epoch(1, TOKENS) or 0
    assert packs < 0.75 * 64
    found = one.open(TOKENS, SEED, packs)(0, range(packs))
    assert {name: array.shape for name, array in found.items()} == dict.fromkeys(
        ("input_ids", "labels", "position_ids"), (packs, 32)
    )
    seen = []
    for ids, labels, positions in zip(*found.values(), strict=True):
        begins = [*np.flatnonzero(positions == 0), 32]
        for begin, end in itertools.pairwise(begins):
            assert [*positions[begin:end]] == [*range(end - begin)]
            document = [*ids[begin:end]]
            if (labels[begin:end] == -100).all():
                assert (document, end) == ([9] * len(document), 32), "what fills the rest, at the end"
                continue
            assert [*labels[begin:end]] == [*document[1:], -100]
            seen.append(document)
    assert sorted(seen) == sorted([*map(int, EACH[i, : 8 + i % 24])] for i in range(64))


def test_labels_of_packed_rows_are_their_own_if_they_are_shifted_already():
    found = opened("Unequal", DataShape("tokens", 64, 256), packing=True)(0, range(8))
    alone = opened("Unequal", weigh_labels=True, shuffle=False)
    rows = {alone(step, range(8))["labels"][i].tobytes() for step in range(8) for i in range(8)}
    assert {half.tobytes() for row in found["labels"] for half in (row[:32], row[32:])} <= rows


@pytest.mark.parametrize("step", [0, 9])
def test_each_division_of_a_batch_has_the_same_packed_rows(step):
    batches = opened("many_tokens", packing=True, shift_labels=True)
    whole = batches(step, range(8))
    assert len(whole["input_ids"]) == 8
    for rows in (range(6, 8), range(6)):
        part = opened("many_tokens", packing=True, shift_labels=True)(step, rows)
        assert all(np.array_equal(part[name], whole[name][rows.start : rows.stop]) for name in whole)


@pytest.mark.parametrize("seed", range(5))
def test_packs_hold_each_row_once_and_are_as_few_as_best_fit_allows(seed):
    from distbench.data._layouts import best_fit_packs

    lengths = np.random.default_rng(seed).integers(1, 101, 300)
    packs = best_fit_packs(lengths, 100)
    assert sorted(index for pack in packs for index in pack) == [*range(300)]
    assert all(lengths[pack].sum() <= 100 for pack in packs)
    # at most 11/9 of the fewest and 6/9 more (Dosa 2007)
    assert len(packs) <= 11 / 9 * -(-lengths.sum() // 100) + 6 / 9 + sum(lengths > 50)
    # plainly: each row goes where least room is left
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [place for place, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting, key=lambda place: rooms[place])] -= length
        else:
            rooms.append(100 - length)
    assert sorted(100 - lengths[pack].sum() for pack in packs) == sorted(rooms)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (
            "Tokens",
            DataShape("tokens", 16, 256),
            "row 23 has 31 tokens; it must have 1 to 16: set the length",
        ),
        ("WithEmpty", TOKENS, "row 3 has 0 tokens; it must have 1 to 32"),
        ("Stream", TOKENS, "is iterable, but packing needs the length of each row in advance"),
        ("Unnamed", TOKENS, "row 0 has no input_ids"),
    ],
)
def test_rows_that_can_t_be_packed_are_named(name, shape, said):
    with pytest.raises(ValueError, match=said):
        opened(name, shape, packing=True, shift_labels=True)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Unlabelled", "a row has input_ids, but no labels; shift_labels: true makes them"),
        ("Masked", "a row has attention_mask, which the workload does not take"),
        ("UnevenLabels", "a row has 32 input_ids and 31 labels; packing needs one of each for every token"),
    ],
)
def test_packed_rows_that_lack_what_a_workload_takes_are_refused(name, said):
    with pytest.raises(ValueError, match=said):
        opened(name, packing=True)(0, range(8))


@pytest.mark.parametrize(
    "options",
    [
        {"padding": "longest"},
        {"pad_to_multiple_of": 8},
        {"collate": "datasets_of_users:halves"},
        {"group_by_length": True},
    ],
)
def test_options_that_contradict_packing_are_refused(options):
    (option,) = options
    said = source("Tokens", packing=True, **options).problem(TOKENS) or ""
    assert said == f"packing fills rows by itself; remove {option}, or set packing: false"
    features = source("Tokens", packing=True).problem(DataShape("features", 8, 10)) or ""
    assert "packing is for workloads of tokens" in features


@pytest.mark.parametrize("options", [{"packing": True}, {"padding": "longest"}])
def test_a_token_that_fills_rows_is_one_of_the_workload(options):
    assert source("Tokens", pad_token_id=255, **options).problem(TOKENS) is None
    said = source("Tokens", pad_token_id=256, **options).problem(TOKENS) or ""
    assert said == "pad_token_id = 256: the ids of the workload are 0 to 255; use one of them"


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("Tokens", {"shuffle": False, "padding": "longest"}, "group_by_length orders rows by length"),
        ("Tokens", {}, "group_by_length is for rows of unequal length; set padding: longest"),
    ],
)
def test_options_that_contradict_grouping_are_refused(name, options, problem):
    assert problem in (source(name, group_by_length=True, **options).problem(TOKENS) or "")


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Stream", "is iterable, but group_by_length needs the length of each row in advance"),
        ("Unnamed", "row 0 has no input_ids, so its length is unknown"),
    ],
)
def test_datasets_whose_lengths_are_unknown_can_t_be_grouped(name, problem):
    with pytest.raises(ValueError, match=problem):
        opened(name, group_by_length=True, padding="longest")


def test_padding_is_for_tokens_and_instead_of_collate():
    one = source("Tokens", padding="max_length", collate="datasets_of_users:halves")
    assert "padding and collate both" in (one.problem(TOKENS) or "")
    assert "padding is for workloads of tokens" in (one.problem(DataShape("features", 8, 10)) or "")


@pytest.mark.parametrize("padding", ["none", "max_length"])
def test_a_multiple_is_for_the_longest_row(padding):
    said = source("Tokens", padding=padding, pad_to_multiple_of=8).problem(TOKENS) or ""
    assert f"pad_to_multiple_of = 8 is only used with padding: longest, but padding = {padding}" in said


@pytest.mark.parametrize(
    "options", [{"shift_labels": True}, {"weigh_labels": True}, {"padding": "max_length"}]
)
def test_rows_for_a_loss_function_are_not_changed(options):
    taken = replace(TOKENS, takes_any_arrays=True)
    assert source("Tokens", **options).problem(TOKENS) is None
    assert "loss_function of the workload gets rows as they are" in (
        source("Tokens", **options).problem(taken) or ""
    )


def test_a_loss_function_gets_all_arrays_as_they_are():
    found = opened("Masked", replace(TOKENS, takes_any_arrays=True))(0, range(8))
    assert found["attention_mask"].sum() == 8 * 16
    assert set(found) == {"input_ids", "labels", "attention_mask"}


def test_rows_are_stacked_by_the_function_in_collate():
    found = opened("Rows", DataShape("tokens", 16, 256), collate="datasets_of_users:halves")(0, range(8))
    assert found["input_ids"].shape == (8, 16)


MISTAKES = {
    "few": "has 5 rows, fewer than the global batch of 8",
    "once": "returned generator, which can be read only once",
    "splits": "returned a mapping of train and test; return one of these datasets",
    "OnceOnly": "returned OnceOnly, which can be read only once",
    "Exhausted": "gives no rows in epoch",
    "SomeNames": "give all rows the same arrays",
    "Fractions": "labels has fractions",
    "number": "returned int; it must return a dataset",
    "raises": "raised FileNotFoundError: no such corpus",
    "nothing": "has no nothing",
    "Empty": "gives no rows",
    "Unrepeatable": "another one whenever it is read",
    "Ragged": "input_ids differs in shape from row to row; set padding: longest, or max_length",
    "Short": "input_ids of a row has the shape (16,), but the workload takes (32,)",
    "LargeIds": "but the workload takes 0 to 255",
    "WithText": "text is no array of numbers (str)",
    "Masked": "a row has attention_mask, which the workload does not take",
    "Unshifted": "labels equal input_ids",
    "Unlabelled": "but no labels",
    "Unequal": "so the mean of the means of ranks is not the mean of the global batch",
    "Unfinished": "a row has no label other than -100",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_a_workload_can_t_take_is_refused_with_the_remedy(name):
    with pytest.raises(ValueError, match=r"^dataset = 'datasets_of_users:") as refused:
        for step in range(8):
            opened(name, weigh_labels=name == "Unfinished")(step, range(8))
    assert MISTAKES[name] in str(refused.value)


def test_a_batch_without_an_axis_of_rows_is_refused():
    with pytest.raises(ValueError, match="the first axis of each array that collate returns"):
        opened("Rows", replace(TOKENS, takes_any_arrays=True), collate="datasets_of_users:colliding")(
            0, range(8)
        )


def test_a_batch_that_is_drawn_as_a_whole_is_refused():
    with pytest.raises(ValueError, match="draws random numbers, so the rows of a rank would depend"):
        opened("Rows", collate="datasets_of_users:masking")(0, range(8))


def test_names_are_checked_without_an_import():
    for options, problem in {
        ("datasets_of_users", None): "must be of the form package.module:callable",
        ("no_such_module:rows", None): "no module no_such_module",
        ("datasets_of_users:Rows", "halves"): "collate = 'halves': must be of the form",
    }.items():
        dataset, collate = options
        one = registry.create_plugin("data", PluginChoice("user", {"dataset": dataset, "collate": collate}))
        assert problem in (one.problem(TOKENS) or "")
    features = source("Rows", shift_labels=True).problem(DataShape("features", 8, 10))
    assert features and "shift_labels is for workloads of tokens" in features
