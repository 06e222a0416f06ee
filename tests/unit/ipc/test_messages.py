"""Messages between processes: each arrives as it was sent, or not at all."""

import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from distbench.ipc.build_files import BuildEvent
from distbench.ipc.channels import ChannelError
from distbench.ipc.launch_spec import LaunchSpec, PythonTarget, RankRange
from distbench.ipc.local_channel import LocalChannel
from distbench.ipc.messages import (
    BuildEvents,
    FileChunk,
    LaunchPrepared,
    MessageError,
    NodeFacts,
    PrepareLaunch,
    RankExit,
    RankProgress,
    RankStates,
    SampledRows,
    StartLaunch,
    StartRanks,
    StopLaunch,
    decode_message,
    encode_message,
)
from distbench.ipc.trial_files import ProgressMark
from distbench.launchers.base import LaunchError
from distbench.launchers.fork_server_client import ForkServerClient
from distbench.system.cgroup_memory import CgroupMemory
from distbench.system.network_interfaces import NetworkInterface

LAUNCH = LaunchSpec(
    "rank",
    Path("/run/trials/a/0/trial.json"),
    processes=4,
    nodes=2,
    device="cuda",
    environment={"OMP_NUM_THREADS": "1"},
    imports=("torch",),
    leftovers=("tmp/{port}*",),
    target=PythonTarget("/other/python", "/work", {"PYTHONPATH": "/own"}),
    ranks=RankRange(4, 2, 2, 1, 2, "10.0.0.1", 29500),
    run_folder=Path("/run"),
    input_files=(Path("/run/scratch/weights"),),
    output_files=(Path("/run/scratch/left"),),
    is_sampled=True,
    start_s=7.5,
)


@pytest.mark.parametrize(
    "message",
    [
        PrepareLaunch(LAUNCH, in_mirror=True, file_label="far"),
        LaunchPrepared(),
        StartRanks(29500),
        StartLaunch(replace(LAUNCH, ranks=None, run_folder=None)),
        StopLaunch(),
        RankExit(3, -9, 12.5, CgroupMemory("cgroup", 2, 1 << 30)),
        RankStates(((0, "R"), (3, "T"))),
        RankProgress(((1, ProgressMark("time", 3, 7)),)),
        BuildEvents((BuildEvent("weights", ended=True, notes=["drawn"]),)),
        NodeFacts(
            "far",
            "10.0.0.2",
            "abc",
            8,
            "NVML: Unknown Error",
            {"cpu": "fast", "gpus": ["H200"]},
            (NetworkInterface("eth0", ("10.0.0.2",), is_up=True),),
        ),
        SampledRows("power", ({"at": 1.5, "watts": None},)),
        FileChunk("rank0.json", 3, "digest", b'{"type":\n"StopLaunch"}'),
        FileChunk("empty", 0),
    ],
    ids=lambda message: type(message).__name__,
)
def test_a_message_arrives_as_it_was_sent(message):
    assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    ("encoded", "told"),
    [
        (b'{"type": "Unheard"}', "a message of the unknown type Unheard"),
        (b'{"launch": {}}', "a message of the unknown type None"),
        (b'{"type": "RankExit", "rank": 0, "code": 0}', "a message RankExit: at is missing"),
        (b'{"type": "RankStates", "states": [["0", "R"]]}', "states.0.0: '0': expected a whole number"),
        (b'{"type": "StartLaunch", "spec": {"command": "sh"}}', "spec.command: 'sh': expected one of"),
    ],
)
def test_what_is_no_message_is_named(encoded, told):
    with pytest.raises(MessageError) as refused:
        decode_message(encoded)
    assert told in str(refused.value)


def test_a_local_channel_delivers_what_has_come_and_notices_the_end():
    near, far = socket.socketpair()
    ours, theirs = LocalChannel(near), LocalChannel(far)
    ours.send(StopLaunch())
    ours.send(RankExit(0, 1, 2.0))
    whole = encode_message(StopLaunch()) + b"\n"
    near.sendall(whole[:9])
    assert theirs.receive() == [StopLaunch(), RankExit(0, 1, 2.0)]
    near.sendall(whole[9:])
    assert theirs.receive() == [StopLaunch()]
    near.sendall(b'{"stop": true}\n')
    with pytest.raises(ChannelError, match="unknown type"):
        theirs.receive()
    ours.close()
    assert theirs.receive() == []
    assert not theirs.alive
    theirs.close()


def test_a_fork_server_of_another_version_is_named_as_such(tmp_path):
    other = tmp_path / "python"
    other.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        'descriptor = int(sys.argv[sys.argv.index("serve") + 1])\n'
        'os.write(descriptor, b\'{"ready": 1, "answers": true}\\n\')\ntime.sleep(60)\n'
    )
    other.chmod(0o755)
    with pytest.raises(
        LaunchError, match="is of another version of distbench: a message of the unknown type"
    ):
        ForkServerClient((), {}, tmp_path / "log", 30.0, PythonTarget(str(other)))
