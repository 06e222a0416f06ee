"""What a version adds leaves the cases, the ids and the records of the versions before it as they were."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from distbench.cli import main
from distbench.core.case import Batch, Case, OptimizerConfig, PluginChoice
from distbench.core.errors import RecordError
from distbench.core.serialization import decode
from distbench.record import Record
from support.records import case, measured
from support.suite_sections import Part

SUITE = """
workload: mlp
batch: {global_batch_size: 8}
strategies: [%s]
world_sizes: [1]
"""
STRATEGY = """
from dataclasses import dataclass, field
from distbench.strategies.base import Strategy

@dataclass(frozen=True)
class Growing(Strategy):
    old: int = 1
    %s
    engine_class = label = "growing"

    def build(self, context):
        raise NotImplementedError
"""
NEW = 'new: int = field(default=1, metadata={"since": 4})'


@pytest.fixture
def planned(tmp_path, monkeypatch, capsys):
    """Plan of one strategy of a plug-in whose dataclass has another field, where one is given."""

    def make(strategy: str, field_: str = "") -> dict[str, Any]:
        # a folder of its own: what a process has imported it does not import again
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        (folder / "strategies").mkdir(parents=True)
        (folder / "strategies" / "growing.py").write_text(STRATEGY % field_)
        (folder / "suite.yaml").write_text(SUITE % strategy)
        monkeypatch.setenv("DISTBENCH_PLUGINS", str(folder))
        assert main(["plan", str(folder / "suite.yaml"), "--json"]) == 0
        return dict(json.loads(capsys.readouterr().out))

    return make


def ids(plan: dict[str, Any]) -> list[str]:
    return [case["case_id"] for case in plan["cases"]]


def test_a_newer_option_changes_no_id_until_it_is_set(planned):
    before = planned("growing")
    for strategy in ("growing", "{growing: {new: 1}}"):
        after = planned(strategy, NEW)
        assert (ids(after), after["suite"]) == (ids(before), before["suite"])
    assert ids(planned("{growing: {new: 2}}", NEW)) != ids(before)


def test_an_option_that_is_not_marked_as_newer_changes_the_id(planned):
    assert ids(planned("growing")) != ids(planned("growing", "new: int = 1"))


def test_cases_that_differ_in_a_newer_option_have_names_of_their_own(planned):
    cases = planned("{growing: {new: [1, 2]}}", NEW)["cases"]
    assert len({each["case"] for each in cases}) == len({each["case_id"] for each in cases}) == 2


@dataclass(frozen=True)
class Mesh:
    tensor: int = 1


@dataclass(frozen=True)
class CaseWithNewField(Case):
    """A case as a later version might have it."""

    mesh: Mesh = field(default=Mesh(), metadata={"since": 4})


def case_with_new_field(**changes: Any) -> CaseWithNewField:
    old = case("ddp", strategy=PluginChoice("ddp", {"bucket_mb": 25}))
    return CaseWithNewField(**{**vars(old), **changes})


def test_a_newer_field_changes_no_id_until_it_is_set():
    old = case("ddp", strategy=PluginChoice("ddp", {"bucket_mb": 25}))
    assert old.id == case_with_new_field().id != case_with_new_field(mesh=Mesh(2)).id
    assert decode(CaseWithNewField, old.to_json(), "old") == case_with_new_field()
    assert decode(Case, case_with_new_field(mesh=Mesh(2)).to_json(), "new") == old


def test_a_newer_field_is_part_of_the_work():
    assert case_with_new_field().work_key() != case_with_new_field(mesh=Mesh(2)).work_key()


@pytest.mark.parametrize(
    ("but", "changes"),
    [
        ("strategy", {"strategy": PluginChoice("fsdp")}),
        ("batch", {"batch": Batch(64, 32, 1)}),
        ("batch.micro_batch_size", {"batch": Batch(8, 2, 1)}),
        ("optimizer.lr", {"optimizer": OptimizerConfig(lr=0.5)}),
        ("threads", {"threads": 4}),
    ],
)
def test_work_is_the_same_but_for_the_axes_that_are_relaxed(but, changes):
    one, other = case("ddp", name="one"), case("ddp", **changes)
    assert one.work_key((but,)) == other.work_key((but,))
    assert one.work_key() != other.work_key() != one.work_key(("seed",))
    assert hash(one.work_key()) != hash(other.work_key())


@pytest.mark.parametrize(
    ("plain", "instance"),
    [
        ({"word": "a"}, Part("a")),
        ({"word": "a", "from_tomorrow": [1]}, Part("a")),
        ({"word": "b", "pair": [3, 4.5], "maybe": 2}, Part("b", (3, 4.5), 2)),
        ({"word": "b", "maybe": None, "many": [{"name": "x"}]}, Part("b", many=[PluginChoice("x")])),
        ({"word": "b", "bounded": None}, Part("b", bounded=None)),
    ],
)
def test_what_was_written_is_read(plain, instance):
    assert decode(Part, plain, "here") == instance


@pytest.mark.parametrize(
    ("plain", "place"),
    [
        ([], "here: "),
        ({}, "here: word"),
        ({"word": "c"}, "here: word: 'c'"),
        ({"word": "a", "pair": 1}, "here: pair: 1"),
        ({"word": "a", "pair": ["x", 1]}, "here: pair.0: 'x'"),
        ({"word": "a", "pair": [1]}, "here: pair: [1]: expected 2 values"),
        ({"word": "a", "maybe": True}, "here: maybe: True"),
        ({"word": "a", "bounded": 0}, "here: bounded: 0: must be at least 1"),
        ({"word": "a", "many": [{"name": 1}]}, "here: many.0.name: 1"),
        ({"word": "a", "many": [{"options": {}}]}, "here: many.0: name"),
    ],
)
def test_what_can_not_be_read_names_file_key_and_value(plain, place):
    with pytest.raises(RecordError) as caught:
        decode(Part, plain, "here")
    assert str(caught.value).startswith(place)


def test_a_record_with_a_key_of_a_later_version_is_read():
    record = measured(case())
    plain = json.loads(json.dumps(record.to_json({})))
    plain["case"]["mesh"] = {"tensor": 1}
    assert Record.from_json({**plain, "weather": "fine"}, "here").case == record.case
