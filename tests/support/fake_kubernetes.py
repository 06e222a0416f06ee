"""Kubernetes on this machine: a kubectl whose pods are processes with mounts of their own.

It answers with objects as the API documents them (https://kubernetes.io/docs/reference/kubernetes-api/), with
the fields that distbench reads. A pod is the command of its container, in namespaces of processes and of
mounts: the folder of the runs is a pod's own, as on another machine. That needs root. Where a test gives the
state of the jobs and pods, no pod is started.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_TESTS = Path(__file__).parents[1]
_GRACE_S = 20.0
_KUBECTL = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(_TESTS)!r})
from support.fake_kubernetes import Kubectl
sys.exit(Kubectl({{state!r}}).main(sys.argv[1:]))
"""


class FakeCluster:
    """A cluster, its kubectl in ``bin``, and its state as files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "state", folder / "bin"
        for each in ("objects", "pods", "mounts"):
            (self.folder / each).mkdir(parents=True)
        self.bin.mkdir()
        for name, text in (
            ("kubectl", _KUBECTL.format(state=str(self.folder))),
            ("python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n'),
        ):
            (self.bin / name).write_text(text)
            (self.bin / name).chmod(0o755)

    def say(self, *objects: Mapping[str, Any]) -> None:
        """Answer with *objects* from now on, whatever is created."""
        _write(self.folder / "said.json", list(objects))

    def write_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Answer with *events*."""
        _write(self.folder / "events.json", events)

    def refuse(self, kind: str, why: str) -> None:
        """Refuse to create objects of *kind*."""
        _write(self.folder / "refused.json", {kind: why})

    @property
    def calls(self) -> list[list[str]]:
        """Arguments of each call of kubectl."""
        file = self.folder / "calls"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def created(self) -> list[dict[str, Any]]:
        """Objects that are left."""
        return [json.loads(file.read_text()) for file in sorted((self.folder / "objects").iterdir())]

    @property
    def pods(self) -> list[dict[str, Any]]:
        """Pods that are left."""
        return [*_read_all(self.folder / "pods")]

    def lose(self, role: str, reason: str) -> None:
        """Kill a pod of *role*, for a *reason* of the kubelet's."""
        pod = next(pod for pod in self.pods if pod["metadata"]["labels"]["distbench/role"] == role)
        _write(self.folder / f"{pod['metadata']['name']}.reason", reason)
        _kill(pod)

    def end(self) -> None:
        """End all pods, and wait until they are gone."""
        for pod in self.pods:
            _kill(pod)
        end = time.monotonic() + 60
        while self.pods and any(_is_alive(pod) for pod in self.pods):
            assert time.monotonic() < end, "a pod does not end"
            time.sleep(0.05)


class Kubectl:
    """The commands that distbench gives kubectl."""

    def __init__(self, state: str) -> None:
        self._state = Path(state)

    def main(self, arguments: Sequence[str]) -> int:
        """Do what *arguments* say; return the exit code."""
        with (self._state / "calls").open("a") as calls:
            calls.write(json.dumps(list(arguments)) + "\n")
        before, _, command = (
            (arguments, "", ())
            if "--" not in arguments
            else (arguments[: arguments.index("--")], "--", arguments[arguments.index("--") + 1 :])
        )
        options = dict(each[2:].partition("=")[::2] for each in before if each.startswith("--"))
        words = [each for each in before if not each.startswith("--")]
        if words[0] == "pod":
            return self._run_pod(words[1])
        return int(getattr(self, f"_{words[0]}")(words[1:], options, list(command)))

    def _create(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        assert options["output"].startswith("jsonpath="), options
        refused = _read(self._state / "refused.json") or {}
        # most calls do without
        from ruamel.yaml import YAML

        objects = [*YAML(typ="safe").load_all(sys.stdin)]
        for each in objects:
            if why := refused.get(each["kind"]):
                print(f"Error from server (Forbidden): {why}", file=sys.stderr)  # noqa: T201
                return 1
            metadata = each["metadata"]
            _write(self._state / "objects" / f"{each['kind']}-{metadata['name']}.json", each)
            print(f"{metadata['namespace']}/{each['kind']}/{metadata['name']}")  # noqa: T201
        if not (self._state / "said.json").exists():
            for job in (job for each in objects for job in _jobs(each)):
                _write(self._state / "objects" / f"Job-{job['metadata']['name']}.json", job)
                for number in range(job["spec"].get("completions", 1)):
                    self._start_pod(job, number)
        return 0

    def _start_pod(self, job: Mapping[str, Any], number: int) -> None:
        name = f"{job['metadata']['name']}-{number}-x"
        template = job["spec"]["template"]
        pod = {
            "kind": "Pod",
            "metadata": {
                "name": name,
                "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "labels": template["metadata"]["labels"],
            },
            "spec": {**template["spec"], "nodeName": f"node-{'ab'[number]}"},
            "status": {"phase": "Pending"},
        }
        _write(self._state / "pods" / f"{name}.json", pod)
        command = [sys.executable, sys.argv[0], "pod", name]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.Popen(command, start_new_session=True, **quiet)  # type: ignore[call-overload]

    def _run_pod(self, name: str) -> int:
        """Be the kubelet of pod *name*."""
        file = self._state / "pods" / f"{name}.json"
        pod = _read(file)
        container = pod["spec"]["containers"][0]
        claims = [
            each.get("persistentVolumeClaim", {}).get("claimName", name) for each in pod["spec"]["volumes"]
        ]
        # the folder of the runs is that of the pod, if it mounts no claim
        own = self._state / "mounts" / next((claim for claim in claims if claim != name), name)
        own.mkdir(exist_ok=True)
        objects = self._objects_of(pod["metadata"]["labels"]["distbench/run"])
        reports = next(each["mountPath"] for each in _controller_mounts(objects) if each["name"] == "reports")
        config = _config(objects, self._state / "mounts" / f"{name}.config")
        command = [
            word.replace("/suite/", f"{config}/").replace("$$(", "$(") for word in container["command"]
        ]
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        script = 'mount --bind "$0" "$1" && shift && exec "$@"'
        with (self._state / "pods" / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*enter, "sh", "-c", script, str(own), reports, *command],
                env={**os.environ, "KUBERNETES_SERVICE_HOST": "10.0.0.1", **_variables(pod, objects)},
                stdout=log,
                stderr=log,
            )
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text().split()) and process.poll() is None:
            time.sleep(0.01)
        pod["process"] = int(found[0]) if found else 0
        pod["started"] = _start_time(pod["process"])
        pod["status"] = {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]}
        _write(file, pod)
        code = process.wait()
        pod = _read(file)
        lost = _read(self._state / f"{name}.reason")
        # unshare does not tell a signal
        code = 137 if lost else code
        reason = lost or ("Error" if code else "Completed")
        ended = {"exitCode": code, "reason": reason}
        pod["status"] = {
            "phase": "Failed" if code else "Succeeded",
            "containerStatuses": [{"state": {"terminated": ended}}],
        }
        _write(file, pod)
        return 0

    def _objects_of(self, run: str) -> list[dict[str, Any]]:
        found = _read_all(self._state / "objects")
        return [each for each in found if each["metadata"]["labels"]["distbench/run"] == run]

    def _get(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        if words == ["events"]:
            print(json.dumps({"items": _read(self._state / "events.json") or []}))  # noqa: T201
            return 0
        if options["output"] == "name":
            for pod in self._selected(options["selector"]):
                if pod["status"]["phase"] == "Running":
                    print(f"pod/{pod['metadata']['name']}")  # noqa: T201
            return 0
        said = _read(self._state / "said.json")
        if said is None:
            run = options["selector"].removeprefix("distbench/run=")
            jobs = [each for each in self._objects_of(run) if each["kind"] == "Job"]
            said = [*({**job, "status": {}} for job in jobs), *self._selected(options["selector"])]
        print(json.dumps({"kind": "List", "items": said}))  # noqa: T201
        return 0

    def _logs(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        for pod in self._selected(options["selector"]):
            name = pod["metadata"]["name"]
            file = self._state / "pods" / f"{name}.log"
            lines = file.read_text().splitlines() if file.exists() else []
            last = int(options["tail"])
            for line in lines if last < 0 else lines[-last:]:
                print(f"[pod/{name}] {line}" if "prefix" in options else line)  # noqa: T201
        return 0

    def _exec(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        pod = _read(self._state / "pods" / f"{words[0].removeprefix('pod/')}.json")
        if pod is None or not _is_alive(pod):
            print("error: unable to upgrade connection: container not found", file=sys.stderr)  # noqa: T201
            return 1
        enter = ["nsenter", "--mount", "--pid", f"--target={pod['process']}", "--", *command]
        return subprocess.run(enter, check=False).returncode

    def _delete(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        run = options["selector"].removeprefix("distbench/run=")
        for file in (self._state / "objects").iterdir():
            if json.loads(file.read_text())["metadata"]["labels"]["distbench/run"] == run:
                file.unlink()
        for pod in self._selected(options["selector"]):
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            _write(self._state / "pods" / f"{pod['metadata']['name']}.json", pod)
            stop = [sys.executable, sys.argv[0], "stop", pod["metadata"]["name"]]
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.Popen(stop, start_new_session=True, **quiet)  # type: ignore[call-overload]
        return 0

    def _stop(self, words: Sequence[str], options: Mapping[str, str], command: Sequence[str]) -> int:
        """End a pod as its kubelet does."""
        file = self._state / "pods" / f"{words[0]}.json"
        pod = _read(file)
        if pod and _is_alive(pod):
            os.kill(pod["process"], signal.SIGTERM)
            end = time.monotonic() + _GRACE_S
            while _is_alive(pod) and time.monotonic() < end:
                time.sleep(0.05)
            _kill(pod)
        # its kubelet has the last word
        while pod and "terminated" not in json.dumps(pod["status"]):
            time.sleep(0.05)
            pod = _read(file)
        file.unlink(missing_ok=True)
        return 0

    def _selected(self, selector: str) -> list[dict[str, Any]]:
        wanted = dict(each.split("=") for each in selector.split(","))
        pods = _read_all(self._state / "pods")
        return [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]


def _controller_mounts(objects: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    jobs = [each for each in objects if each["kind"] == "Job"]
    (job,) = [each for each in jobs if each["metadata"]["labels"]["distbench/role"] == "controller"]
    mounts: list[dict[str, str]] = job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
    return mounts


def _config(objects: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write the ConfigMap into *folder*."""
    (found,) = [each for each in objects if each["kind"] == "ConfigMap"]
    folder.mkdir(exist_ok=True)
    for key, text in found.get("data", {}).items():
        (folder / key).write_text(text)
    for key, text in found.get("binaryData", {}).items():
        (folder / key).write_bytes(base64.b64decode(text))
    return folder


def _variables(pod: Mapping[str, Any], objects: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Environment of the container of *pod*."""
    (secret,) = [each for each in objects if each["kind"] == "Secret"]
    found = {}
    for each in pod["spec"]["containers"][0]["env"]:
        source = each.get("valueFrom", {})
        if "secretKeyRef" in source:
            found[each["name"]] = secret["stringData"][source["secretKeyRef"]["key"]]
        else:
            found[each["name"]] = pod["spec"]["nodeName"] if source else each["value"]
    if "DISTBENCH_CONTROLLERS" in found:
        # what a cluster's DNS says of the controller
        port = found["DISTBENCH_CONTROLLERS"].rpartition(":")[2]
        found["DISTBENCH_CONTROLLERS"] = f"127.0.0.1:{port}"
    return found


def _jobs(of: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The Job that *of* is, or those that the controller of JobSets makes of it."""
    if of["kind"] == "Job":
        yield dict(of)
    for job in of["spec"]["replicatedJobs"] if of["kind"] == "JobSet" else ():
        template = job["template"]
        metadata = {**template["metadata"], "name": f"{of['metadata']['name']}-{job['name']}-0"}
        yield {"kind": "Job", "metadata": metadata, "spec": template["spec"]}


def _is_alive(pod: Mapping[str, Any]) -> bool:
    # the number of a process that has ended is given to another one before long
    return bool(pod.get("process")) and _start_time(pod["process"]) == pod["started"]


def _start_time(process: int) -> str:
    """Time at which *process* was started, in ticks of the kernel; empty: there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def _kill(pod: Mapping[str, Any]) -> None:
    if _is_alive(pod):
        os.kill(pod["process"], signal.SIGKILL)


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        return None


def _read_all(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.json")):
        if found := _read(file):
            yield found


def _write(file: Path, content: Any) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    aside.write_text(json.dumps(content))
    shutil.move(aside, file)
