"""Runs on Kubernetes: what its API says of them, in a few words, and what is fetched from their pods.

The objects have the fields that https://kubernetes.io/docs/reference/kubernetes-api/ describes.
"""

import tarfile
from io import BytesIO
from typing import Any

import pytest

from distbench.core.errors import InfrastructureError, UsageError
from distbench.launchers.base import QueuedJob
from distbench.launchers.kubernetes.folder_copy import extract, pack
from distbench.launchers.kubernetes.queue import KubernetesQueue
from support.fake_kubernetes import FakeCluster

IMAGE = "registry.example/distbench:1"
NAME = "default/job/distbench-suite-1f2e3d"
Answer = dict[str, Any]


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> FakeCluster:
    cluster = FakeCluster(tmp_path / "cluster")
    monkeypatch.setenv("PATH", str(cluster.bin), prepend=":")
    return cluster


def pod(
    phase: str, role: str = "controller", *, name: str = "c", state: Answer | None = None, **status: Any
) -> Answer:
    """A pod as the API describes it; *state*: of its container."""
    containers = [{"name": role, "image": IMAGE, "state": state}] if state else []
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"distbench/role": role},
        },
        "spec": {"containers": [{"name": role, "image": IMAGE}], "nodeName": "node-a"},
        "status": {"phase": phase, "containerStatuses": containers, **status},
    }


def agent(phase: str, **fields: Any) -> Answer:
    return pod(phase, "agent", name="distbench-suite-1f2e3d-agents-1-x", **fields)


def job(role: str = "controller", **condition: str) -> Answer:
    status = {"conditions": [{"status": "True", **condition}]} if condition else {"active": 1}
    metadata = {"name": f"distbench-suite-1f2e3d-{role}", "labels": {"distbench/role": role}}
    return {"kind": "Job", "metadata": metadata, "status": status}


def waiting(reason: str, message: str = "") -> Answer:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def terminated(code: int, reason: str) -> Answer:
    return {"terminated": {"exitCode": code, "reason": reason}}


def unscheduled(reason: str, message: str) -> list[Answer]:
    return [{"type": "PodScheduled", "status": "False", "reason": reason, "message": message}]


FEW = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
STATES = {
    "no node has room": (
        [job(), pod("Pending", conditions=unscheduled("Unschedulable", FEW))],
        QueuedJob("waiting", f"Pending (Unschedulable: {FEW})"),
    ),
    "a queue holds it": (
        [job(), pod("Pending", conditions=unscheduled("SchedulingGated", "Scheduling is blocked"))],
        QueuedJob("waiting", "Pending (SchedulingGated: Scheduling is blocked)"),
    ),
    "a container is made": (
        [pod("Pending", state=waiting("ContainerCreating"))],
        QueuedJob("waiting", "Pending (ContainerCreating)"),
    ),
    "a secret is missing": (
        [pod("Pending", state=waiting("CreateContainerConfigError", 'secret "gone" not found'))],
        QueuedJob("waiting", 'Pending (CreateContainerConfigError: secret "gone" not found)'),
    ),
    "agents wait": (
        [
            pod("Running", state=RUNNING),
            *[agent("Pending", conditions=unscheduled("Unschedulable", FEW))] * 2,
        ],
        QueuedJob("running", f"Running (agents: Unschedulable: {FEW})"),
    ),
    "it runs": (
        [pod("Running", state=RUNNING), agent("Running", state=RUNNING)],
        QueuedJob("running", "Running"),
    ),
    "an agent is out of memory": (
        [pod("Running", state=RUNNING), agent("Failed", state=terminated(137, "OOMKilled"))],
        QueuedJob("running", "Running", lost="distbench-suite-1f2e3d-agents-1-x on node-a: OOMKilled"),
    ),
    "an agent was deleted": (
        [
            pod("Running", state=RUNNING),
            job("agent", type="Failed", reason="BackoffLimitExceeded", message="Job has reached the limit"),
        ],
        QueuedJob("running", "Running", lost="all agents: BackoffLimitExceeded: Job has reached the limit"),
    ),
    "it has failed": (
        [pod("Failed", state=terminated(3, "Error"))],
        QueuedJob("ended", "Failed", 3),
    ),
    "it is out of memory": (
        [pod("Failed", state=terminated(137, "OOMKilled"))],
        QueuedJob("ended", "Failed (OOMKilled)", 137),
    ),
    "it was evicted": (
        [pod("Failed", reason="Evicted", message="The node was low on resource: memory.")],
        QueuedJob("ended", "Failed (Evicted: The node was low on resource: memory.)", None),
    ),
    "it was preempted, and ended well": (
        [
            pod(
                "Failed",
                state=terminated(0, "Completed"),
                conditions=[
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "PreemptionByScheduler",
                        "message": "preempting to accommodate a higher priority pod",
                    }
                ],
            )
        ],
        QueuedJob(
            "ended", "Failed (PreemptionByScheduler: preempting to accommodate a higher priority pod)", None
        ),
    ),
    "its time is over": (
        [
            job(
                type="Failed",
                reason="DeadlineExceeded",
                message="Job was active longer than specified deadline",
            )
        ],
        QueuedJob(
            "ended",
            "Failed (DeadlineExceeded: Job was active longer than specified deadline; its pod is gone)",
        ),
    ),
    "a queue suspends it": (
        [job(type="Suspended", reason="JobSuspended", message="Job suspended")],
        QueuedJob("waiting", "Suspended"),
    ),
    "it was deleted": ([], QueuedJob("ended", "not found in the namespace and the context of kubectl")),
}


@pytest.mark.parametrize("case", STATES)
def test_a_state_is_told_with_its_reason(cluster, case):
    objects, told = STATES[case]
    cluster.say(*objects)
    assert KubernetesQueue().query(NAME) == told
    first = cluster.calls[0]
    assert first == [
        "--namespace=default",
        "get",
        "jobs,pods",
        "--selector=distbench/run=distbench-suite-1f2e3d",
        "--output=json",
    ]


def test_an_image_that_can_not_be_pulled_is_named_once_with_the_reason(cluster):
    why = f'failed to pull and unpack image "{IMAGE}": not found'
    told = [
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'),
        waiting("ErrImagePull", why),
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'),
        # from 1.31 on
        waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}": ErrImagePull: {why}'),
    ]
    queue, seen = KubernetesQueue(), []
    for state in told:
        cluster.say(pod("Pending", state=state), agent("Pending", state=state))
        seen.append(queue.query(NAME))
    short = f"image {IMAGE} can't be pulled"
    assert [each and each.state_text for each in seen] == [
        f"Pending ({short})",
        *[f"Pending ({short}: {why})"] * 3,
    ]


def test_a_job_without_pods_is_told_with_the_last_warning(cluster):
    cluster.say(job())
    about = {"kind": "Job", "name": "distbench-suite-1f2e3d-controller"}
    other = {"kind": "Job", "name": "others"}
    events = [
        {"involvedObject": about, "reason": "FailedCreate", "message": "exceeded quota: gpus"},
        {"involvedObject": other, "reason": "FailedCreate", "message": "another's"},
    ]
    cluster.write_events(events)
    told = KubernetesQueue().query(NAME)
    assert told == QueuedJob("waiting", "Pending (no pod): FailedCreate: exceeded quota: gpus")


def test_a_cluster_that_does_not_answer_says_nothing(tmp_path, monkeypatch):
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'Unable to connect to the server' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert KubernetesQueue().query(NAME) is None


def test_without_kubectl_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match=r"kubectl: can't be started: No such file .*; install it"):
        KubernetesQueue().query(NAME)


@pytest.mark.parametrize("name", ["17", "default/pod/x", "a/job/x --all", "../job/x", "--all/job/x y"])
def test_a_name_that_is_none_is_refused(name):
    with pytest.raises(UsageError, match="not a run on Kubernetes"):
        KubernetesQueue().cancel_command(name)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        (
            "lab/Secret/distbench-a-1\nlab/ConfigMap/distbench-a-1\nlab/Job/distbench-a-1-agents\n",
            "lab/job/distbench-a-1",
        ),
        ("lab/Secret/distbench-a-1\nlab/JobSet/distbench-a-1\n", "lab/jobset/distbench-a-1"),
    ],
)
def test_a_run_is_named_by_its_objects(printed, name):
    assert KubernetesQueue().parse_job_name(printed) == name


def archive(files: dict[str, str], *others: tarfile.TarInfo) -> BytesIO:
    stream = BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for other in others:
            made.addfile(other)
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(text), 1_000
            made.addfile(member, BytesIO(text.encode()))
    stream.seek(0)
    return stream


def test_files_come_with_their_times_and_nothing_else_does(tmp_path):
    link = tarfile.TarInfo("./link")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    run = tmp_path / "run"
    run.mkdir()
    extract(archive({"./trials/a/record.json": "{}", "../out": "x", "/absolute-x": "x"}, link), run)
    assert [str(file.relative_to(run)) for file in run.rglob("*") if file.is_file()] == [
        "trials/a/record.json"
    ]
    assert not (tmp_path / "out").exists()
    assert (run / "trials/a/record.json").stat().st_mtime == 1_000


def test_an_archive_that_is_cut_leaves_whole_files_only(tmp_path):
    whole = archive({"a": "1" * 2_000, "b": "2" * 20_000})
    with pytest.raises(tarfile.TarError):
        extract(BytesIO(whole.getvalue()[:8_000]), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["a"]


def test_a_further_session_gets_records_but_no_pages_and_logs(tmp_path):
    for name in (
        "run.json",
        "progress.jsonl",
        "report.html",
        "trials/a/0/record.json",
        "trials/a/0/rank0.log",
        "submitted/request.json",
        "scratch/weights",
        ".owner",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    copy = tmp_path / "copy"
    copy.mkdir()
    with tarfile.open(fileobj=BytesIO(pack(tmp_path))) as packed:
        files = {member.name.removeprefix("./") for member in packed if member.isreg()}
    assert files == {"run.json", "progress.jsonl", "trials/a/0/record.json"}
