"""Random input: what is read ends in a value or in an error of its own kind, and in nothing else."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

from hypothesis import example, given, settings
from hypothesis import strategies as drawn

from distbench import plan
from distbench.core.errors import DistbenchError, RecordError
from distbench.core.machine import Machine
from distbench.core.serialization import decode, parse_json
from distbench.ipc.channels import AGENT_ROLE, CONTROLLER_ROLE, AuthenticatedChannel, ChannelError, new_token
from distbench.ipc.messages import Message
from distbench.suite.suite import parse_suite_text
from support.suite_sections import Part

MACHINE = Machine("cpu", 4, {"torch": "9", "deepspeed": "9"}, has_libaio=False, has_compiler=True)
SUITE = """\
name: one
workload: {transformer: {preset: tiny, seq_len: 64}}
data: text
batch: {global_batch_size: 8}
optimizer: {name: adamw, lr: 1.0e-3}
precision: [fp32, bf16]
world_sizes: [1, 2]
measure: {steps: 4, trials: 2}
check: {steps: 3}
gate: {tokens_per_s: 0.05}
strategies:
  - ddp: {bucket_cap_mb: [25, 1]}
  - fsdp: {mesh: {tp: 2}}
  - zero: {stage: [1, 3], offload_optimizer: cpu}
exclude:
  - {strategy: fsdp+tp2, world_size: 1}
"""
TOKENS = [
    *("null", "true", "-1", "0", "1e400", ".nan", ".inf", "''", "[]", "{}", "[[1]]", "{a: b}", "auto", "5e8"),
    *(
        "&a",
        "*a",
        "!!python/object:os.system",
        "\t",
        "\x00",
        "\u202e",
        ": ",
        "- ",
        "\n",
        "  ",
        "#",
        "|\n",
        "%",
    ),
    *("strategies:", "axes: {seed: [1, 2]}", "include:", "workload:", "10000000000000000000000"),
]
EDITS = drawn.lists(
    drawn.tuples(
        drawn.integers(0, len(SUITE)),
        drawn.integers(0, 30),
        drawn.one_of(drawn.sampled_from(TOKENS), drawn.text(max_size=4)),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(EDITS)
@example([(0, len(SUITE), "")])
@example([(0, len(SUITE), "[" * 3000)])
def test_a_suite_is_planned_or_its_mistakes_are_told(edits):
    text = SUITE
    for place, cut, new in edits:
        text = text[:place] + new + text[place + cut :]
    try:
        made = plan.make_plan(parse_suite_text(text, file="fuzzed.yaml"), MACHINE)
    except DistbenchError as error:
        assert str(error)
        assert "Traceback" not in str(error)
    else:
        assert all(item.problem is None or item.problem for item in made.cases)


JSON = drawn.recursive(
    drawn.one_of(drawn.none(), drawn.booleans(), drawn.integers(), drawn.floats(), drawn.text(max_size=8)),
    lambda inner: drawn.one_of(
        drawn.lists(inner, max_size=4),
        drawn.dictionaries(
            drawn.sampled_from(["word", "pair", "maybe", "many", "bounded", "name", "options", "x"]),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=20,
)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(JSON)
def test_what_is_decoded_is_of_its_types_or_an_error_with_its_place(plain):
    try:
        part = decode(Part, plain, "here")
    except RecordError as error:
        assert str(error).startswith("here: ")
        return
    assert part.word in ("a", "b")
    assert len(part.pair) == 2
    assert part.bounded is None or part.bounded >= 1
    assert all(isinstance(each.name, str) for each in part.many)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(drawn.binary(max_size=64))
@example(b"[" * 100_000)
@example(b"9" * 5000)
def test_what_is_no_json_is_an_error_that_names_its_source(data):
    try:
        value = parse_json(data, "here")
    except RecordError as error:
        assert str(error).startswith("here: ")
    else:
        assert json.loads(data) == value or value != value


def test_random_frames_end_a_connection_and_nothing_else():
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(drawn.lists(drawn.binary(min_size=1, max_size=80), min_size=1, max_size=3))
    def fuzzed(chunks: list[bytes]) -> None:
        token = new_token()
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as both:
            theirs = socket.create_connection(listener.getsockname())
            own = both.submit(AuthenticatedChannel, listener.accept()[0], token, CONTROLLER_ROLE)
            other = both.submit(AuthenticatedChannel, theirs, token, AGENT_ROLE).result()
            controller = own.result()
        for chunk in chunks:
            theirs.sendall(chunk)
        other.close()
        received: list[Message] = []
        try:
            while controller.alive:
                received += controller.receive(5)
        except ChannelError:
            pass
        assert received == []
        controller.close()

    fuzzed()


def test_a_suite_of_bytes_that_are_no_text_is_a_mistake(tmp_path):
    from distbench.suite import load_suite

    file = tmp_path / "suite.yaml"
    for content in (b"\xff\xfe\x00", b"a: \x00", b"\x80" * 100):
        file.write_bytes(content)
        try:
            load_suite(file)
        except DistbenchError as error:
            assert "suite.yaml" in str(error)
        else:
            raise AssertionError("it was read")
