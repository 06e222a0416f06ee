"""Data sources: the same rows for every share-out, and one clear message when they don't fit."""

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distbench.core import registry
from distbench.core.case import PluginChoice
from distbench.data.base import IGNORE_INDEX, BatchFunction, DataShape, DataSource
from distbench.suite.sections import check_section
from support.records import case

TOKENS = DataShape("tokens", 16, 256)
MASKED = DataShape("masked_tokens", 16, 257)
PAIRS = DataShape("pairs", 16, 256, 5)
FEATURES = DataShape("features", 64, 10)
IMAGES = DataShape("images", 20, 10, channels=3)
SHAPES = {shape.kind: shape for shape in (TOKENS, MASKED, PAIRS, FEATURES, IMAGES)}
KINDS: dict[str, tuple[str, ...]] = {
    "digits": ("features", "images"),
    "synthetic": tuple(SHAPES),
    "text": ("tokens", "masked_tokens", "pairs"),
    "tokens": ("tokens", "masked_tokens", "pairs"),
}
"""Source -> the kinds of rows that it gives, the first of which most tests take."""

NEEDS_TRAIN = {"digits"}
SOURCES = [
    pytest.param(name, marks=pytest.mark.train if name in NEEDS_TRAIN else ())
    for name in registry.plugin_names("data")
    if name != "user"
]


def source(name: str, **options: Any) -> DataSource:
    made: DataSource = registry.create_plugin("data", PluginChoice(name, options))
    return made


def write_ids(file: Path, ids: Any, dtype: str = "uint16") -> str:
    np.asarray(ids, dtype=dtype).tofile(file)
    return str(file)


@pytest.fixture(params=SOURCES)
def source_in_test(request, tmp_path) -> DataSource:
    options = {"tokens": {"path": write_ids(tmp_path / "ids.bin", np.arange(5000) % 256)}}
    return source(request.param, **options.get(request.param, {}))


@pytest.fixture(
    params=[
        pytest.param(
            (name, kind), id=f"{name}-{kind}", marks=pytest.mark.train if name in NEEDS_TRAIN else ()
        )
        for name, kinds in KINDS.items()
        for kind in kinds
    ]
)
def any_rows(request, tmp_path) -> tuple[DataSource, DataShape]:
    name, kind = request.param
    options = {"path": write_ids(tmp_path / "ids.bin", np.arange(5000) % 256)} if name == "tokens" else {}
    return source(name, **options), SHAPES[kind]


def open_source(one: DataSource, seed: int = 7, batch_size: int = 6) -> tuple[DataShape, BatchFunction]:
    shape = FEATURES if type(one).__name__ == "Digits" else TOKENS
    assert one.problem(shape) is None
    return shape, one.open(shape, seed, batch_size)


def assert_same_rows(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_every_source_has_its_kinds_in_these_tests():
    # the rows of a user have a file of their own
    assert sorted([*KINDS, "user"]) == registry.plugin_names("data")


def test_rows_have_the_form_that_the_shape_promises(any_rows):
    one, shape = any_rows
    assert one.problem(shape) is None
    rows = one.open(shape, 7, 6)(0, range(6))
    labels = rows["labels"][rows["labels"] != IGNORE_INDEX]
    forms = {name: (array.shape, array.dtype.name) for name, array in rows.items()}
    assert (
        forms
        == {
            "tokens": {"input_ids": ((6, 16), "int64"), "labels": ((6, 16), "int64")},
            "masked_tokens": {"input_ids": ((6, 16), "int64"), "labels": ((6, 16), "int64")},
            "pairs": {
                "input_ids": ((6, 16), "int64"),
                "decoder_input_ids": ((6, 5), "int64"),
                "labels": ((6, 5), "int64"),
            },
            "features": {"features": ((6, 64), "float32"), "labels": ((6,), "int64")},
            "images": {"pixel_values": ((6, 3, 20, 20), "float32"), "labels": ((6,), "int64")},
        }[shape.kind]
    )
    assert tuple(rows)[:-1] == shape.inputs
    assert labels.min() >= 0
    assert labels.max() < shape.ids
    assert all(array.flags["C_CONTIGUOUS"] for array in rows.values())


def test_labels_are_the_tokens_that_follow(source_in_test):
    shape, batches = open_source(source_in_test)
    if shape.kind == "tokens":
        rows = batches(0, range(6))
        assert np.array_equal(rows["input_ids"][:, 1:], rows["labels"][:, :-1])


@pytest.mark.parametrize("name", ["text", "synthetic"])
def test_a_target_goes_on_where_its_source_ends(name):
    rows = source(name).open(PAIRS, 7, 6)(0, range(6))
    # the window of the same seed and step, in one piece
    whole = source(name).open(DataShape("tokens", 20, 256), 7, 6)(0, range(6))
    if name == "text":
        assert np.array_equal(rows["labels"][:, :-1], rows["decoder_input_ids"][:, 1:])
    assert np.array_equal(rows["input_ids"], whole["input_ids"][:, :16])
    assert np.array_equal(rows["decoder_input_ids"], whole["input_ids"][:, 15:])
    assert np.array_equal(rows["labels"], whole["labels"][:, 15:])


@pytest.mark.parametrize("mask", [None, 3])
def test_as_many_tokens_are_masked_in_each_row_and_the_others_are_seen(mask):
    shape = DataShape("masked_tokens", 40, 257, mask=mask)
    rows = source("text").open(shape, 7, 6)(0, range(6))
    is_masked = rows["labels"] != IGNORE_INDEX
    assert is_masked.sum(axis=1).tolist() == [6] * 6, "15% of 40"
    assert (rows["input_ids"][is_masked] == (256 if mask is None else mask)).all()
    whole = np.where(is_masked, rows["labels"], rows["input_ids"])
    text = source("text").tokens().tobytes()
    assert all(bytes(row.astype(np.uint8)) in text for row in whole)
    later = source("text").open(shape, 7, 6)(1, range(6))["labels"] != IGNORE_INDEX
    assert not np.array_equal(is_masked, later)


def test_a_vocabulary_without_an_id_for_the_mask_is_refused():
    problem = str(source("text").problem(DataShape("masked_tokens", 16, 256)))
    assert "a vocabulary of 256, and one id more for the mask; set vocab_size (classes), now 256" in problem
    assert source("text").problem(DataShape("masked_tokens", 16, 256, mask=255)) is None


@pytest.mark.train
def test_images_of_digits_are_the_digits_enlarged():
    plain = source("digits").open(FEATURES, 1, 6)(0, range(6))
    images = source("digits").open(DataShape("images", 16, 10, channels=2), 1, 6)(0, range(6))
    assert np.array_equal(images["labels"], plain["labels"])
    enlarged = plain["features"].reshape(6, 8, 8).repeat(2, axis=1).repeat(2, axis=2)
    assert all(np.array_equal(images["pixel_values"][:, channel], enlarged) for channel in range(2))


@pytest.mark.parametrize("shape", [FEATURES, IMAGES])
def test_classes_of_synthetic_rows_are_patterns_that_can_be_told_apart(shape):
    batches = source("synthetic").open(shape, 7, 400)
    seen, fresh = (batches(step, range(400)) for step in (0, 1))
    values, other = (rows[shape.inputs[0]].reshape(400, -1) for rows in (seen, fresh))
    means = np.stack([values[seen["labels"] == each].mean(axis=0) for each in range(10)])
    nearest = ((other[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == fresh["labels"]).mean() > 0.9


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_the_shares_of_all_ranks_make_the_whole_batch(any_rows, ranks):
    one, shape = any_rows
    batches, share = one.open(shape, 7, 6), 6 // ranks
    parts = [batches(3, range(rank * share, (rank + 1) * share)) for rank in range(ranks)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert assert_same_rows(joined, batches(3, range(6)))


def test_a_step_gives_the_same_rows_whatever_was_asked_before(source_in_test):
    _, batches = open_source(source_in_test)
    for step in range(3):
        batches(step, range(6))
    _, fresh = open_source(source_in_test)
    assert assert_same_rows(batches(1, range(6)), fresh(1, range(6)))


def test_other_steps_and_other_seeds_give_other_rows(source_in_test):
    _, batches = open_source(source_in_test)
    _, other_seed = open_source(source_in_test, seed=8)
    first = batches(0, range(6))
    assert not assert_same_rows(first, batches(1, range(6)))
    assert not assert_same_rows(first, other_seed(0, range(6)))


@pytest.mark.parametrize("name", SOURCES)
def test_a_workload_that_wants_another_kind_is_told_which_sources_fit(name, tmp_path):
    options = {"path": write_ids(tmp_path / "ids.bin", np.arange(5000) % 256)} if name == "tokens" else {}
    for kind, shape in SHAPES.items():
        problem = source(name, **options).problem(shape)
        assert (problem is None) == (kind in KINDS[name])
        if problem:
            named = problem.partition("set data to")[2]
            assert {each for each in KINDS if each in named} == {
                each for each, kinds in KINDS.items() if kind in kinds
            }


def test_text_is_the_documentation_that_python_carries():
    from pydoc_data.topics import topics

    everything = "\n".join(topics[name] for name in sorted(topics)).encode()
    _, batches = open_source(source("text"))
    rows = batches(0, range(6))["input_ids"]
    assert len(rows) == 6
    for row in rows:
        assert bytes(row.astype(np.uint8)) in everything


def test_text_takes_a_file_of_ones_own_to_its_last_byte(tmp_path):
    file = tmp_path / "own.txt"
    file.write_bytes(bytes(range(18)))
    batches = source("text", path=str(file)).open(TOKENS, 0, 50)
    rows = batches(0, range(50))
    assert {int(row[0]) for row in rows["input_ids"]} == {0, 1}
    assert rows["labels"].max() == 17


def test_the_ids_of_a_file_reach_the_batch_unchanged(tmp_path):
    path = write_ids(tmp_path / "ids.bin", [70000, 5, 9], "uint32")
    batches = source("tokens", path=path, dtype="uint32").open(DataShape("tokens", 2, 70001), 0, 1)
    rows = batches(0, range(1))
    assert rows["input_ids"].tolist() == [[70000, 5]]
    assert rows["labels"].tolist() == [[5, 9]]


@pytest.mark.train
def test_digits_are_those_of_scikit_learn_each_once_an_epoch():
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    batches = source("digits").open(FEATURES, 1, len(labels))
    epoch, later = batches(0, range(len(labels))), batches(1, range(len(labels)))
    assert rows_of(epoch) == sorted(zip(map(tuple, (features / 16).tolist()), labels.tolist(), strict=True))
    assert rows_of(later) == rows_of(epoch)
    assert not assert_same_rows(later, epoch)


@pytest.mark.train
def test_a_batch_of_digits_may_run_over_the_end_of_an_epoch():
    per_epoch = 1797
    batches = source("digits").open(FEATURES, 1, 2 * per_epoch)
    whole = batches(0, range(2 * per_epoch))
    assert rows_of({name: array[:per_epoch] for name, array in whole.items()}) == rows_of(
        {name: array[per_epoch:] for name, array in whole.items()}
    )


def rows_of(batch: dict[str, np.ndarray]) -> list[tuple[tuple[float, ...], int]]:
    return sorted(zip(map(tuple, batch["features"].tolist()), batch["labels"].tolist(), strict=True))


def markov_pairs(states: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    batches = source("synthetic", states=states).open(DataShape("tokens", 200, 256), 5, 100)
    for step in range(10):
        rows = batches(step, range(100))
        yield rows["input_ids"].ravel(), rows["labels"].ravel()


def test_the_true_model_of_the_source_has_its_entropy_rate_as_loss():
    synthetic = registry.load_plugin("data", "synthetic")(states=8)
    transitions = synthetic.transitions(256)
    losses = [-np.log(transitions[inputs, labels]).mean() for inputs, labels in markov_pairs(8)]
    assert np.mean(losses) == pytest.approx(synthetic.entropy_rate(256), rel=0.01)


def test_no_bigram_model_falls_below_the_entropy_rate_by_more_than_chance():
    counts = np.zeros((8, 8))
    for inputs, labels in markov_pairs(8):
        np.add.at(counts, (inputs, labels), 1)
    fitted = counts / counts.sum(axis=1, keepdims=True)
    present = counts > 0
    empirical = -(counts[present] * np.log(fitted[present])).sum() / counts.sum()
    assert empirical == pytest.approx(
        registry.load_plugin("data", "synthetic")(states=8).entropy_rate(256), rel=0.01
    )


@pytest.mark.parametrize("concentration", [0.001, 0.1, 1000])
def test_the_rows_of_the_source_are_probabilities_and_its_entropy_lies_between_the_bounds(concentration):
    synthetic = registry.load_plugin("data", "synthetic")(states=16, concentration=concentration)
    assert synthetic.transitions(256).sum(axis=1) == pytest.approx(np.ones(16))
    assert 0 < synthetic.entropy_rate(256) <= math.log(16)


def test_a_source_of_many_equal_successors_is_as_uncertain_as_can_be():
    synthetic = registry.load_plugin("data", "synthetic")(states=4, concentration=1000)
    assert synthetic.entropy_rate(256) == pytest.approx(math.log(4), rel=0.01)


def test_a_large_vocabulary_leaves_the_source_at_its_most_states():
    synthetic = registry.load_plugin("data", "synthetic")()
    shape = DataShape("tokens", 16, 128256)
    assert synthetic.problem(shape) is None
    assert synthetic.open(shape, 0, 4)(0, range(4))["labels"].max() < 1024


@pytest.mark.parametrize(
    "options",
    [
        {"states": 1},
        {"states": 5000},
        {"concentration": 0.0},
        {"concentration": math.nan},
        {"source_seed": -1},
    ],
)
def test_an_impossible_synthetic_source_names_the_option(options):
    _, findings = check_section(registry.load_plugin("data", "synthetic"), options, ())
    assert [finding.path for finding in findings] == [tuple(options)]


def test_a_synthetic_source_has_no_more_tokens_than_the_vocabulary():
    assert "states = 300" in str(source("synthetic", states=300).problem(TOKENS))


@pytest.mark.parametrize(
    ("content", "shape", "told"),
    [
        (None, TOKENS, "no such file"),
        (b"", TOKENS, "empty"),
        (b"0123456789abcdef", TOKENS, "16 tokens; a sample of length 16 needs 17"),
        (b"x" * 99, DataShape("tokens", 16, 128), "vocabulary of 256; set vocab_size (classes), now 128"),
    ],
)
def test_a_text_that_cannot_feed_the_workload_says_so(tmp_path, content, shape, told):
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    problem = str(source("text", path=str(file)).problem(shape))
    assert told in problem
    assert str(file) in problem


def test_a_folder_is_no_text(tmp_path):
    assert "not a file" in str(source("text", path=str(tmp_path)).problem(TOKENS))


def test_the_own_text_needs_a_vocabulary_of_all_bytes():
    assert "vocab_size (classes), now 128" in str(source("text").problem(DataShape("tokens", 16, 128)))


@pytest.mark.parametrize(
    ("content", "dtype", "told"),
    [
        (b"", "uint16", "empty"),
        (b"abc", "uint16", "3 bytes"),
        (b"abcdef", "int32", "6 bytes"),
        (np.arange(17, dtype="<u2").tobytes()[:-2], "uint16", "16 tokens"),
        (
            np.full(99, 300, dtype="<u2").tobytes(),
            "uint16",
            "vocabulary of 301; set vocab_size (classes), now 256",
        ),
        (np.full(99, -4, dtype="<i4").tobytes(), "int32", "negative id, -4"),
    ],
)
def test_a_file_of_ids_that_cannot_feed_the_workload_says_so(tmp_path, content, dtype, told):
    file = tmp_path / "ids.bin"
    file.write_bytes(content)
    assert told in str(source("tokens", path=str(file), dtype=dtype).problem(TOKENS))


def test_a_file_of_ids_that_has_changed_is_read_again(tmp_path):
    file = tmp_path / "ids.bin"
    tokens = source("tokens", path=write_ids(file, np.full(99, 5)))
    assert tokens.problem(TOKENS) is None
    write_ids(file, np.full(100, 500))
    assert "500" in str(tokens.problem(TOKENS))


def test_a_file_of_ids_is_read_by_one_command_for_those_that_follow(tmp_path):
    file, cache = tmp_path / "ids.bin", tmp_path / "cache"
    path = write_ids(file, np.full(99, 5))
    code = f"""
from distbench.data.base import DataShape
from distbench.data.tokens import Tokens

print(Tokens(path={path!r}).problem(DataShape("tokens", 16, 256)))
"""

    def asked() -> str:
        variables = {**os.environ, "DISTBENCH_CACHE": str(cache)}
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=variables, capture_output=True, text=True, check=True).stdout

    assert asked() == "None\n"
    # in its place, as old and as long: who reads it sees an id that is too large
    written = file.stat().st_mtime_ns
    with file.open("r+b") as ids:
        ids.write(np.full(99, 500, dtype="<u2").tobytes())
    os.utime(file, ns=(written, written))
    assert asked() == "None\n"
    (kept,) = (cache / "tokens").iterdir()
    kept.write_text("{")
    assert "500" in asked()


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (DataShape("features", 784, 10), "in_features (length) = 784"),
        (DataShape("features", 64, 3), "classes = 3"),
        (DataShape("images", 7, 10, channels=1), "image_size = 7"),
    ],
)
def test_digits_say_which_shape_they_have(shape, told):
    assert told in str(source("digits").problem(shape))


@pytest.mark.train
@pytest.mark.parametrize("name", ["tokens", "digits"])
def test_what_is_held_out_is_never_trained_on(name, tmp_path):
    # every id once, so that a window tells where it comes from
    path = write_ids(tmp_path / "ids.bin", np.arange(5000))
    one = source(name, path=path) if name == "tokens" else source(name)
    shape = DataShape("tokens", 16, 5000) if name == "tokens" else open_source(one)[0]
    split = one.split(shape, 7, 64, 12)
    key = "features" if shape.kind == "features" else "input_ids"
    seen = {row.tobytes() for step in range(40) for row in split.train(step, range(64))[key]}
    if name == "tokens":
        trained = max(split.train(step, range(64))["labels"].max() for step in range(40))
        assert trained < split.held_out["input_ids"].min()
    assert not seen & {row.tobytes() for row in split.held_out[key]}
    assert len(split.held_out["labels"]) == 12


@pytest.mark.train
def test_the_digits_that_are_held_out_and_the_others_are_all_digits():
    shape, batches = open_source(source("digits"), batch_size=1797)
    split = source("digits").split(shape, 7, 1438, 10_000)
    both = np.concatenate([split.train(0, range(1438))["features"], split.held_out["features"]])
    assert len(both) == 1797
    assert {row.tobytes() for row in both} == {row.tobytes() for row in batches(0, range(1797))["features"]}


def test_a_source_is_judged_by_the_same_rows_whatever_the_seed_and_trains_by_it(any_rows):
    source, shape = any_rows
    merit = source.held_out_metric(shape)
    assert merit and merit.doc.endswith(".")
    one, other = (source.split(shape, seed, 6, 9) for seed in (7, 8))
    assert len(one.held_out["labels"]) == 9
    assert assert_same_rows(one.held_out, other.held_out)
    assert not assert_same_rows(one.train(0, range(6)), other.train(0, range(6)))


def test_a_text_whose_last_tenth_is_shorter_than_a_sample_can_not_be_split(tmp_path):
    path = write_ids(tmp_path / "ids.bin", np.arange(100))
    with pytest.raises(ValueError, match="100 tokens: the last tenth is held out, and is too short"):
        source("tokens", path=path).split(TOKENS, 7, 6, 4)


def test_the_held_out_samples_of_the_synthetic_source_are_judged_from_its_entropy_rate():
    one = source("synthetic", states=8)
    merit = one.held_out_metric(TOKENS)
    assert merit and merit.floor == pytest.approx(one.entropy_rate(256))  # type: ignore[attr-defined]


@pytest.mark.train
def test_batches_made_ahead_are_those_of_their_steps_all_of_a_pass_or_none():
    import torch

    from distbench.strategies.base import RankContext
    from distbench.worker.batches import MAX_PREFETCH_BYTES, MicroBatchReader

    trained = case(
        "ddp", data=PluginChoice("synthetic"), workload=PluginChoice("transformer", {"seq_len": 16})
    )
    workload = registry.create_plugin("workloads", trained.workload)
    setting = RankContext(trained, workload, Path(), torch.device("cpu"), 1, 2, Path())
    asked: list[int] = []

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        asked.append(step)
        return {"input_ids": np.full((len(rows), lengths[step > 5]), 100 * step + rows.start)}

    # the second are so large that two of them are too many
    lengths = (3, MAX_PREFETCH_BYTES // 8 // 4 // 2 + 1)
    feed = MicroBatchReader(setting, batches=batches)
    feed.prefetch(range(2, 5))
    assert asked == [2, 3, 4]
    seen = [int(feed.micro_batches(step)[0]["input_ids"][0, 0]) for step in (2, 3, 4, 5, 3)]
    assert seen == [204, 304, 404, 504, 304]
    assert asked == [2, 3, 4, 5, 3], "made once and used once"
    feed.prefetch(range(6, 8))
    assert asked[5:] == [6], "nothing more is made"
    assert int(feed.micro_batches(6)[0]["input_ids"][0, 0]) == 604
    assert asked[5:] == [6, 6]
