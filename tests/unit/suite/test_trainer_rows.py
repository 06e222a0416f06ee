"""Rows of the Trainer's and of TRL's arguments, in the suite of a dataset with rows of known lengths."""

import json

import pytest

from distbench.cli.configuration_suite import draft_from_file, has_unequal_rows
from distbench.core.errors import UsageError
from distbench.run.user_models import RowResult

FILLED = {"padding": "longest"}
GROUPED = {**FILLED, "group_by_length": True}
PACKED = {"packing": True}
UNEQUAL = RowResult(shape={"kind": "tokens", "length": 26}, lengths=(8, 47))
EQUAL = RowResult(shape={"kind": "tokens", "length": 26}, lengths=(26, 26))
STREAM = RowResult(shape={"kind": "tokens", "length": 26})


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sft_config.json"


def draft(file, settings, row=UNEQUAL, *, has_data=True):
    file.write_text(json.dumps({"output_dir": "out", **settings}))
    made = draft_from_file(file, "tiny", row.shape, row, has_data=has_data)
    tokens = made.sections["workload"]["transformer"]["seq_len"]
    of_rows = [each for each in made.left_out if not each.startswith("lr_scheduler_type")]
    return tokens, made.data_options, of_rows


@pytest.mark.parametrize(
    ("settings", "row", "tokens", "options"),
    [
        ({"packing": True, "max_length": 64}, UNEQUAL, 64, PACKED),
        ({"packing": True, "max_seq_length": 64, "packing_strategy": "bfd"}, UNEQUAL, 64, PACKED),
        ({"group_by_length": True}, UNEQUAL, 47, GROUPED),
        ({"group_by_length": True, "max_length": 64}, UNEQUAL, 64, GROUPED),
        # TRL fills rows that it does not pack
        ({"max_length": 64}, UNEQUAL, 64, FILLED),
        ({"max_length": 64}, EQUAL, 26, {}),
        ({"max_length": 64}, STREAM, 64, FILLED),
        ({"packing": False, "packing_strategy": "wrapped"}, STREAM, 26, {}),
    ],
)
def test_the_length_of_the_workload_is_that_of_trl_or_of_the_longest_row(
    file, settings, row, tokens, options
):
    assert draft(file, settings, row) == (tokens, options, [])
    assert has_unequal_rows(file) == bool({"padding", "packing"} & options.keys() or row is EQUAL)


def test_without_a_dataset_synthetic_rows_have_the_length_of_trl(file):
    assert draft(file, PACKED | {"max_length": 64}, RowResult(), has_data=False) == (
        64,
        PACKED,
        ["packing: only for a dataset of your own; add --data package.module:callable"],
    )


@pytest.mark.parametrize(
    ("settings", "row", "options", "said"),
    [
        (PACKED, UNEQUAL, PACKED, "packed rows have 47 tokens, as the longest row of the dataset"),
        (
            {"packing": True, "max_length": 30},
            UNEQUAL,
            PACKED,
            "the cut of rows to max_length = 30 tokens: rows of the dataset have up to 47, and a suite cuts "
            "none; cut them in the dataset",
        ),
        (
            {"packing": True, "max_length": 64},
            STREAM,
            FILLED,
            "packing: the dataset is iterable, so lengths are not known in advance; it needs __len__ and",
        ),
        ({"group_by_length": True, "max_length": 64}, STREAM, FILLED, "group_by_length: the dataset is iter"),
        (
            {"group_by_length": True},
            RowResult(),
            GROUPED,
            "the length of the longest row: it can't be read in advance; set seq_len of the workload to it",
        ),
        (
            {"packing": True, "max_length": 64, "packing_strategy": "wrapped"},
            UNEQUAL,
            FILLED,
            "packing: packing_strategy: wrapped joins all rows and cuts the result, but packing of a suite "
            "keeps each row whole, which is another training",
        ),
        (
            {"packing": True, "max_length": 64, "packing_strategy": "ffd"},
            UNEQUAL,
            PACKED,
            "packing_strategy: ffd (first fit): it becomes best-fit decreasing",
        ),
        (
            {"packing": True, "max_length": 64, "packing_strategy": "bfd_split"},
            UNEQUAL,
            PACKED,
            "packing_strategy: bfd_split: it becomes best-fit decreasing, but rows that are too long",
        ),
        (
            {"packing": True, "max_length": 64, "packing_strategy": "tight"},
            UNEQUAL,
            FILLED,
            "packing: packing_strategy: 'tight' is none of bfd, ffd, bfd_split, bfd-requeue and wrapped",
        ),
        (
            {"packing": True, "max_length": 64, "group_by_length": True},
            UNEQUAL,
            PACKED,
            "group_by_length: a suite fills all packed rows up to one length: none to group by",
        ),
        (
            {"packing": True, "max_length": 64, "train_sampling_strategy": "group_by_length"},
            UNEQUAL,
            PACKED,
            "train_sampling_strategy: a suite fills all packed rows up to one length: none to group by",
        ),
    ],
)
def test_what_a_suite_does_otherwise_is_said_once_with_its_reason(file, settings, row, options, said):
    _, found, (line,) = draft(file, settings, row)
    assert found == options
    assert said in line


@pytest.mark.parametrize("key", ["packing", "group_by_length", "bf16", "gradient_checkpointing"])
@pytest.mark.parametrize("value", ["yes", 2, ["true"]])
def test_a_switch_is_true_or_false(file, key, value):
    with pytest.raises(UsageError) as caught:
        draft(file, {key: value})
    assert str(caught.value) == f"{file}: {key} = {value!r}: must be true or false"
