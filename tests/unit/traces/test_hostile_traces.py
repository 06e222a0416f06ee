"""Traces that anybody may have written: each comes to an answer or to one message."""

from __future__ import annotations

import json
import random
from typing import Any

from distbench.cli import main
from support.chrome_traces import ChromeTrace, training_step

JUNK: tuple[Any, ...] = (
    *(None, True, -1, 0, 3.5, 1e300, -1e300, 10**30, "", "x", "\u202e\x1b[31m"),
    *([], [[]], [None], ["x"], [[1, "x"]], {}, {"a": 1}),
)
CHANGES = 200


def whole() -> ChromeTrace:
    shapes = {"Input Dims": [[64, 128], [128, 32]], "Input type": ["float", "float"]}
    trace = training_step().op("aten::mm", 102, 104, **shapes).kernel("gemm", 103, 112, 119)
    trace.op("record_param_comms", 104, 106, **{"Input Dims": [[8]], "Input type": ["float"]})
    trace.collective(105, 119, 121, Seq=4)
    node = "autograd::engine::evaluate_function: MmBackward0"
    trace.op(node, 106, 109, **{"Sequence number": 5}).kernel("gradient", 107, 122, 125)
    return trace.event("python_function", "nn.Module: Linear_3", 101, 106)


def places(made: Any) -> list[tuple[dict[str, Any], str]]:
    """Every dict in *made* with each of its keys."""
    inside = made.values() if isinstance(made, dict) else made if isinstance(made, list) else ()
    own = [(made, key) for key in made] if isinstance(made, dict) else []
    return own + [place for value in inside for place in places(value)]


def changed(chance: random.Random) -> dict[str, Any]:
    """A trace in which some values are something else, or gone."""
    made = json.loads(json.dumps(whole().as_json()))
    for _ in range(chance.randint(1, 4)):
        target, key = chance.choice(places(made))
        if chance.random() < 0.2:
            del target[key]
        else:
            target[key] = chance.choice(JUNK)
        if not made:
            break
    return made


def test_random_changes_come_to_an_answer_or_one_message(tmp_path, capsys):
    chance, codes = random.Random(44), []
    for number in range(CHANGES):
        (file := tmp_path / "rank0.json").write_text(json.dumps(changed(chance)))
        page = ["--html", str(tmp_path / "page.html")] if number % 10 == 0 else []
        kept = ["--out", str(tmp_path / "runs")] if number % 10 == 5 else []
        code = main(["trace", str(file), *chance.choice(([], ["--json"])), *page, *kept])
        told = capsys.readouterr()
        assert code in (0, 2), number
        assert code == 0 or told.err.startswith(f"distbench: error: {file}"), told.err
        assert "\x1b[31m" not in told.out
        codes.append(code)
    assert len(codes) == CHANGES and {*codes} == {0, 2}
    runs = [*(tmp_path / "runs").iterdir()]
    assert len(runs) > 5
    assert main(["query", "select * from losses", *map(str, runs)]) == 0


def test_random_bytes_come_to_one_message(tmp_path, capsys):
    chance, whole_text = random.Random(45), json.dumps(whole().as_json()).encode()
    codes = []
    for _ in range(100):
        content = bytearray(whole_text)
        for _ in range(chance.randint(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        (file := tmp_path / "rank0.json").write_bytes(content)
        codes.append(main(["trace", str(file)]))
        told = capsys.readouterr()
        assert codes[-1] == 0 or told.err.startswith(f"distbench: error: {file}"), told.err
    assert len(codes) == 100 and {*codes} <= {0, 2}
