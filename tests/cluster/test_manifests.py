"""Manifests of Kubernetes pass strict validation against the schemas of its API, and of JobSet's."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import kubernetes_validate
import pytest
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob
from ruamel.yaml import YAML

from distbench.launchers.base import ControllerCommand
from distbench.launchers.kubernetes import Kubernetes
from support.runs import QUICK, Done

DOCS = Path(__file__).parents[2] / "docs"
EVERY = """launcher:
  kubernetes:
    image: registry.example/distbench:1
    nnodes: 3
    resources: {requests: {cpu: 2500m, memory: 4Gi}}
    shared_memory: 1Gi
    service_account: bench
    env: {NCCL_DEBUG: WARN}
    pod: {imagePullSecrets: [{name: registry}]}
    security_context: {capabilities: {add: [IPC_LOCK]}}
    labels: {kueue.x-k8s.io/queue-name: gpus}
    annotations: {k8s.v1.cni.cncf.io/networks: rdma}
"""


def on_the_page(page: str = "clusters.md", mark: str = "manifests") -> str:
    (found,) = re.findall(rf"<!-- {mark} -->\n```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return found


def jobs(manifests: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The objects of Kubernetes' own kinds; a JobSet's jobs, each as one."""
    for each in manifests:
        if each["kind"] != "JobSet":
            yield each
            continue
        for job in each["spec"]["replicatedJobs"]:
            metadata = {"name": job["name"]}
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **job["template"]}


def dropped(given: Any, kept: Any, place: str = "") -> Iterator[str]:
    """Keys of *given* that a model has dropped from *kept*, because it does not know them."""
    if isinstance(given, dict):
        for key, value in given.items():
            if key in kept:
                yield from dropped(value, kept[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}"
    elif isinstance(given, list):
        for i, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from dropped(one, other, f"{place}[{i}]")


def check(written: list[dict[str, Any]]) -> None:
    checked = list(jobs(written))
    assert [each["kind"] for each in checked].count("Job") == 2
    for each in checked:
        kubernetes_validate.validate(each, desired_version="1.37", strict=True)
    for each in (each for each in written if each["kind"] == "JobSet"):
        known = JobsetV1alpha2JobSet.from_dict(each)
        assert known is not None
        assert list(dropped(each, known.to_dict())) == []


@pytest.mark.parametrize("kind", ["job", "jobset"])
@pytest.mark.parametrize("launcher", [on_the_page(), EVERY], ids=["page", "every option"])
def test_manifests_are_what_the_api_takes(
    tmp_path: Path, distbench: Callable[..., Done], launcher: str, kind: str
) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text(f"{QUICK}strategies: [ddp]\n{launcher}")
    asked = [str(suite), "--on", "kubernetes", "--set", f"launcher.kubernetes.kind={kind}"]
    launched = distbench("launch", *asked, "--print")
    assert launched.returncode == 0, launched.stderr
    check(list(YAML(typ="safe").load_all(launched.stdout)))
    submitted = json.loads(distbench("plan", *asked, "--json").stdout)["submission"]["text"]
    check(list(YAML(typ="safe").load_all(submitted)))


@pytest.mark.parametrize("kind", ["job", "jobset"])
def test_manifests_of_a_resumed_run_are_what_the_api_takes(
    tmp_path: Path, kind: Literal["job", "jobset"]
) -> None:
    (tmp_path / "run.json").write_text("{}")
    launcher = Kubernetes(image="a", kind=kind)
    submission = launcher.submission(ControllerCommand(["run"], 2, "suite", folder=tmp_path))
    written = list(YAML(typ="safe").load_all(submission.text))
    assert [*written[1]["binaryData"]] == ["run.tar.gz"]
    check(written)


def test_the_train_job_of_the_docs_is_what_the_api_takes() -> None:
    job = YAML(typ="safe").load(on_the_page("torchrun.md", "trainjob"))
    known = TrainerV1alpha1TrainJob.from_dict(job)
    assert known is not None
    assert list(dropped(job, known.to_dict())) == []
    assert known.spec.trainer.command[:4] == ["torchrun", "-m", "distbench", "run"]


def test_strict_validation_refuses_what_is_no_field() -> None:
    metadata = {"name": "wrong"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {"template": {}, "nodes": 2},
    }
    with pytest.raises(kubernetes_validate.ValidationError, match="nodes"):
        kubernetes_validate.validate(job, desired_version="1.37", strict=True)


def test_a_job_set_with_what_is_no_field_is_seen() -> None:
    spec = {"network": {"nodes": 2}, "replicatedJobs": []}
    wrong = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {}, "spec": spec}
    known = JobsetV1alpha2JobSet.from_dict(wrong)
    assert known is not None
    assert list(dropped(wrong, known.to_dict())) == [".spec.network.nodes"]
