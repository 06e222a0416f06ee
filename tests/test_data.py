"""Data sources: the same rows for every share-out, and one clear message when they don't fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import case

from distbench import registry
from distbench.case import Choice
from distbench.data.base import Batches, Shape, Source
from distbench.suite.checking import check

TOKENS = Shape("tokens", 16, 256)
FEATURES = Shape("features", 64, 10)

NEEDS_TRAIN = {"digits"}
SOURCES = [
    pytest.param(name, marks=pytest.mark.train if name in NEEDS_TRAIN else ())
    for name in registry.names("data")
]
REQUIRED = {"tokens": {"path": "ids.bin"}}


def source(name: str, **options: Any) -> Source:
    made: Source = registry.make("data", Choice(name, options))
    return made


def write_ids(file: Path, ids: Any, dtype: str = "uint16") -> str:
    np.asarray(ids, dtype=dtype).tofile(file)
    return str(file)


@pytest.fixture(params=SOURCES)
def any_source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    options = {"tokens": {"path": write_ids(tmp_path / "ids.bin", np.arange(5000) % 256)}}
    return source(request.param, **options.get(request.param, {}))


def opened(one: Source, seed: int = 7, batch_size: int = 6) -> tuple[Shape, Batches]:
    shape = TOKENS if one.kind == "tokens" else FEATURES
    assert one.problem(shape) is None
    return shape, one.open(shape, seed, batch_size)


def same(left: dict[str, np.ndarray], right: dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(np.array_equal(left[name], right[name]) for name in left)


def test_rows_have_the_form_that_the_shape_promises(any_source: Source) -> None:
    shape, batches = opened(any_source)
    rows = batches(0, range(6))
    if shape.kind == "features":
        assert (rows["features"].shape, rows["features"].dtype) == ((6, 64), np.float32)
        assert (rows["labels"].shape, rows["labels"].dtype) == ((6,), np.int64)
    else:
        assert rows["input_ids"].shape == rows["labels"].shape == (6, 16)
        assert rows["input_ids"].dtype == rows["labels"].dtype == np.int64
        assert np.array_equal(rows["input_ids"][:, 1:], rows["labels"][:, :-1])
    assert rows["labels"].min() >= 0
    assert rows["labels"].max() < shape.classes
    assert all(array.flags["C_CONTIGUOUS"] for array in rows.values())


@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_the_shares_of_all_ranks_make_the_whole_batch(any_source: Source, ranks: int) -> None:
    _, batches = opened(any_source)
    share = 6 // ranks
    parts = [batches(3, range(rank * share, (rank + 1) * share)) for rank in range(ranks)]
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert same(joined, batches(3, range(6)))


def test_a_step_gives_the_same_rows_whatever_was_asked_before(any_source: Source) -> None:
    _, batches = opened(any_source)
    for step in range(3):
        batches(step, range(6))
    _, fresh = opened(any_source)
    assert same(batches(1, range(6)), fresh(1, range(6)))


def test_other_steps_and_other_seeds_give_other_rows(any_source: Source) -> None:
    _, batches = opened(any_source)
    _, other_seed = opened(any_source, seed=8)
    first = batches(0, range(6))
    assert not same(first, batches(1, range(6)))
    assert not same(first, other_seed(0, range(6)))


def test_a_workload_that_wants_the_other_kind_is_told_which_sources_fit(any_source: Source) -> None:
    other = FEATURES if any_source.kind == "tokens" else TOKENS
    problem = str(any_source.problem(other))
    every = [source(name, **REQUIRED.get(name, {})) for name in registry.names("data")]
    assert other.kind in problem
    named = problem.partition("set data to")[2]
    assert all(
        (name in named) == (one.kind == other.kind)
        for name, one in zip(registry.names("data"), every, strict=True)
    )


def test_text_is_the_documentation_that_python_carries() -> None:
    from pydoc_data.topics import topics

    everything = "\n".join(topics[name] for name in sorted(topics)).encode()
    _, batches = opened(source("text"))
    for row in batches(0, range(6))["input_ids"]:
        assert bytes(row.astype(np.uint8)) in everything


def test_text_takes_a_file_of_ones_own_to_its_last_byte(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_bytes(bytes(range(18)))
    batches = source("text", path=str(file)).open(TOKENS, 0, 50)
    rows = batches(0, range(50))
    assert {int(row[0]) for row in rows["input_ids"]} == {0, 1}
    assert rows["labels"].max() == 17


def test_the_ids_of_a_file_reach_the_batch_unchanged(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "ids.bin", [70000, 5, 9], "uint32")
    batches = source("tokens", path=path, dtype="uint32").open(Shape("tokens", 2, 70001), 0, 1)
    rows = batches(0, range(1))
    assert rows["input_ids"].tolist() == [[70000, 5]]
    assert rows["labels"].tolist() == [[5, 9]]


@pytest.mark.train
def test_digits_are_those_of_scikit_learn_each_once_an_epoch() -> None:
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    batches = source("digits").open(FEATURES, 1, len(labels))
    epoch, later = batches(0, range(len(labels))), batches(1, range(len(labels)))
    assert rows_of(epoch) == sorted(zip(map(tuple, (features / 16).tolist()), labels.tolist(), strict=True))
    assert rows_of(later) == rows_of(epoch)
    assert not same(later, epoch)


@pytest.mark.train
def test_a_batch_of_digits_may_run_over_the_end_of_an_epoch() -> None:
    per_epoch = 1797
    batches = source("digits").open(FEATURES, 1, 2 * per_epoch)
    whole = batches(0, range(2 * per_epoch))
    assert rows_of({name: array[:per_epoch] for name, array in whole.items()}) == rows_of(
        {name: array[per_epoch:] for name, array in whole.items()}
    )


def rows_of(batch: dict[str, np.ndarray]) -> list[tuple[tuple[float, ...], int]]:
    return sorted(zip(map(tuple, batch["features"].tolist()), batch["labels"].tolist(), strict=True))


def markov_pairs(states: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    batches = source("synthetic", states=states).open(Shape("tokens", 200, 256), 5, 100)
    for step in range(10):
        rows = batches(step, range(100))
        yield rows["input_ids"].ravel(), rows["labels"].ravel()


def test_the_true_model_of_the_source_has_its_entropy_rate_as_loss() -> None:
    synthetic = registry.load("data", "synthetic")(states=8)
    transitions = synthetic.transitions(256)
    losses = [-np.log(transitions[inputs, labels]).mean() for inputs, labels in markov_pairs(8)]
    assert np.mean(losses) == pytest.approx(synthetic.entropy_rate(256), rel=0.01)


def test_no_bigram_model_falls_below_the_entropy_rate_by_more_than_chance() -> None:
    counts = np.zeros((8, 8))
    for inputs, labels in markov_pairs(8):
        np.add.at(counts, (inputs, labels), 1)
    fitted = counts / counts.sum(axis=1, keepdims=True)
    present = counts > 0
    empirical = -(counts[present] * np.log(fitted[present])).sum() / counts.sum()
    assert empirical == pytest.approx(
        registry.load("data", "synthetic")(states=8).entropy_rate(256), rel=0.01
    )


@pytest.mark.parametrize("concentration", [0.001, 0.1, 1000])
def test_the_rows_of_the_source_are_probabilities_and_its_entropy_lies_between_the_bounds(
    concentration: float,
) -> None:
    synthetic = registry.load("data", "synthetic")(states=16, concentration=concentration)
    assert synthetic.transitions(256).sum(axis=1) == pytest.approx(np.ones(16))
    assert 0 < synthetic.entropy_rate(256) <= math.log(16)


def test_a_source_of_many_equal_successors_is_as_uncertain_as_can_be() -> None:
    synthetic = registry.load("data", "synthetic")(states=4, concentration=1000)
    assert synthetic.entropy_rate(256) == pytest.approx(math.log(4), rel=0.01)


def test_a_large_vocabulary_leaves_the_source_at_its_most_states() -> None:
    synthetic = registry.load("data", "synthetic")()
    shape = Shape("tokens", 16, 128256)
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
def test_an_impossible_synthetic_source_names_the_option(options: dict[str, Any]) -> None:
    _, findings = check(registry.load("data", "synthetic"), options, ())
    assert [finding.path for finding in findings] == [tuple(options)]


def test_a_synthetic_source_has_no_more_tokens_than_the_vocabulary() -> None:
    assert "states = 300" in str(source("synthetic", states=300).problem(TOKENS))


@pytest.mark.parametrize(
    ("content", "shape", "told"),
    [
        (None, TOKENS, "no such file"),
        (b"", TOKENS, "empty"),
        (b"0123456789abcdef", TOKENS, "16 tokens; a sample of length 16 needs 17"),
        (b"x" * 99, Shape("tokens", 16, 128), "vocabulary of 256; vocab_size (classes) = 128"),
    ],
)
def test_a_text_that_cannot_feed_the_workload_says_so(
    tmp_path: Path, content: bytes | None, shape: Shape, told: str
) -> None:
    file = tmp_path / "own.txt"
    if content is not None:
        file.write_bytes(content)
    problem = str(source("text", path=str(file)).problem(shape))
    assert told in problem
    assert str(file) in problem


def test_a_folder_is_no_text(tmp_path: Path) -> None:
    assert "not a file" in str(source("text", path=str(tmp_path)).problem(TOKENS))


def test_the_own_text_needs_a_vocabulary_of_all_bytes() -> None:
    assert "vocab_size (classes) = 128" in str(source("text").problem(Shape("tokens", 16, 128)))


@pytest.mark.parametrize(
    ("content", "dtype", "told"),
    [
        (b"", "uint16", "empty"),
        (b"abc", "uint16", "3 bytes"),
        (b"abcdef", "int32", "6 bytes"),
        (np.arange(17, dtype="<u2").tobytes()[:-2], "uint16", "16 tokens"),
        (np.full(99, 300, dtype="<u2").tobytes(), "uint16", "vocabulary of 301; vocab_size (classes) = 256"),
        (np.full(99, -4, dtype="<i4").tobytes(), "int32", "negative id, -4"),
    ],
)
def test_a_file_of_ids_that_cannot_feed_the_workload_says_so(
    tmp_path: Path, content: bytes, dtype: str, told: str
) -> None:
    file = tmp_path / "ids.bin"
    file.write_bytes(content)
    assert told in str(source("tokens", path=str(file), dtype=dtype).problem(TOKENS))


def test_a_file_of_ids_that_has_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "ids.bin"
    tokens = source("tokens", path=write_ids(file, np.full(99, 5)))
    assert tokens.problem(TOKENS) is None
    write_ids(file, np.full(100, 500))
    assert "500" in str(tokens.problem(TOKENS))


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        (Shape("features", 784, 10), "in_features (length) = 784"),
        (Shape("features", 64, 3), "classes = 3"),
    ],
)
def test_digits_say_which_shape_they_have(shape: Shape, told: str) -> None:
    assert told in str(source("digits").problem(shape))


@pytest.mark.train
@pytest.mark.parametrize("name", ["tokens", "digits"])
def test_what_is_held_out_is_never_trained_on(name: str, tmp_path: Path) -> None:
    # every id once, so that a window tells where it comes from
    path = write_ids(tmp_path / "ids.bin", np.arange(5000))
    one = source(name, path=path) if name == "tokens" else source(name)
    shape = Shape("tokens", 16, 5000) if name == "tokens" else opened(one)[0]
    split = one.split(shape, 7, 64, 12)
    key = "features" if shape.kind == "features" else "input_ids"
    seen = {row.tobytes() for step in range(40) for row in split.training(step, range(64))[key]}
    if name == "tokens":
        trained = max(split.training(step, range(64))["labels"].max() for step in range(40))
        assert trained < split.held_out["input_ids"].min()
    assert not seen & {row.tobytes() for row in split.held_out[key]}
    assert len(split.held_out["labels"]) == 12


@pytest.mark.train
def test_the_digits_that_are_held_out_and_the_others_are_all_digits() -> None:
    shape, batches = opened(source("digits"), batch_size=1797)
    split = source("digits").split(shape, 7, 1438, 10_000)
    both = np.concatenate([split.training(0, range(1438))["features"], split.held_out["features"]])
    assert len(both) == 1797
    assert {row.tobytes() for row in both} == {row.tobytes() for row in batches(0, range(1797))["features"]}


def test_a_source_is_judged_by_the_same_rows_whatever_the_seed_and_trains_by_it(any_source: Source) -> None:
    shape, _ = opened(any_source)
    merit = any_source.merit(shape)
    assert merit and merit.doc.endswith(".")
    one, other = (any_source.split(shape, seed, 6, 9) for seed in (7, 8))
    assert same(one.held_out, other.held_out)
    assert not same(one.training(0, range(6)), other.training(0, range(6)))


def test_a_text_whose_last_tenth_is_shorter_than_a_sample_can_not_be_split(tmp_path: Path) -> None:
    path = write_ids(tmp_path / "ids.bin", np.arange(100))
    with pytest.raises(ValueError, match="100 tokens: their last tenth, which is held out, is too short"):
        source("tokens", path=path).split(TOKENS, 7, 6, 4)


def test_the_held_out_samples_of_the_synthetic_source_are_judged_from_its_entropy_rate() -> None:
    one = source("synthetic", states=8)
    merit = one.merit(TOKENS)
    assert merit and merit.floor == pytest.approx(one.entropy_rate(256))  # type: ignore[attr-defined]


@pytest.mark.train
def test_batches_made_ahead_are_those_of_their_steps_all_of_a_pass_or_none() -> None:
    import torch

    from distbench.strategies.base import Setting
    from distbench.worker.feed import AHEAD, Feed

    trained = case("ddp", data=Choice("synthetic"), workload=Choice("transformer", {"seq_len": 16}))
    workload = registry.make("workloads", trained.workload)
    setting = Setting(trained, workload, Path(), torch.device("cpu"), 1, 2, Path())
    asked: list[int] = []

    def batches(step: int, rows: range) -> dict[str, np.ndarray]:
        asked.append(step)
        return {"input_ids": np.full((len(rows), lengths[step > 5]), 100 * step + rows.start)}

    # the second are so large that two of them are too many
    lengths = (3, AHEAD // 8 // 4 // 2 + 1)
    feed = Feed(setting, batches=batches)
    feed.make_ahead(range(2, 5))
    assert asked == [2, 3, 4]
    seen = [int(feed.micro_batches(step)[0]["input_ids"][0, 0]) for step in (2, 3, 4, 5, 3)]
    assert seen == [204, 304, 404, 504, 304]
    assert asked == [2, 3, 4, 5, 3], "made once and used once"
    feed.make_ahead(range(6, 8))
    assert asked[5:] == [6], "nothing more is made"
    assert int(feed.micro_batches(6)[0]["input_ids"][0, 0]) == 604
    assert asked[5:] == [6, 6]
