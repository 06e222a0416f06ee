"""State of a run from its jobs and pods, as the API of Kubernetes describes them.

https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ has the words of phases and reasons.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from distbench.core.text import shorten
from distbench.launchers.base import QueuedJob
from distbench.launchers.kubernetes.manifests import ROLE_LABEL

ApiObject = Mapping[str, Any]

_PULL_REASONS = ("ErrImagePull", "ErrImageNeverPull", "ImagePullBackOff", "InvalidImageName")
# from 1.31 on, it follows in the message about the pause between two tries
_PULL_ERROR = re.compile(r"(?:Back-off pulling image .*?: ErrImagePull: )?(?!Back-off)(.+)", re.DOTALL)
# reasons that say no more than the exit code
_PLAIN_ENDS = ("Completed", "Error")
_MAX_MESSAGE = 500


def run_state(objects: Sequence[ApiObject], pull_errors: MutableMapping[str, str]) -> QueuedJob:
    """State of the run whose jobs and pods are *objects*.

    Args:
        pull_errors: Image -> why it can't be pulled; the API forgets that between two tries.
    """
    agents = [*_of_role(objects, "Pod", "agent")]
    pods = sorted(
        _of_role(objects, "Pod", "controller"), key=lambda pod: pod["metadata"]["creationTimestamp"]
    )
    if not pods:
        return _state_without_pod([*_of_role(objects, "Job", "controller")])
    pod, status = pods[-1], pods[-1].get("status", {})
    phase, stopped = status.get("phase", "Pending"), _container_state(pod, "terminated")
    if stopped is not None or phase in ("Succeeded", "Failed"):
        return _ended(pod, stopped or {})
    waiting = dict.fromkeys(filter(None, (_waiting_text(each, pull_errors) for each in agents)))
    if phase == "Running":
        jobs = _of_role(objects, "Job", "agent")
        lost = [*_lost_pods(agents), *(f"all agents: {why}" for job in jobs if (why := _failure(job)))]
        state = f"Running (agents: {'; '.join(waiting)})" if waiting else "Running"
        return QueuedJob("running", state, lost="; ".join(lost))
    every = dict.fromkeys(filter(None, (_waiting_text(pod, pull_errors), *waiting)))
    return QueuedJob("waiting", f"{phase} ({'; '.join(every)})" if every else phase)


def _state_without_pod(jobs: Sequence[ApiObject]) -> QueuedJob:
    if not jobs:
        return QueuedJob("ended", "not found in the namespace and the context of kubectl")
    if why := _failure(jobs[-1]):
        return QueuedJob("ended", f"Failed ({why}; its pod is gone)")
    if any(_conditions(jobs[-1], "Complete")):
        return QueuedJob("ended", "Complete (its pod is gone)")
    return QueuedJob(
        "waiting", "Suspended" if any(_conditions(jobs[-1], "Suspended")) else "Pending (no pod)"
    )


def _ended(pod: ApiObject, stopped: ApiObject) -> QueuedJob:
    """State of a run whose controller's *pod* or container has ended, the latter as *stopped* says."""
    code = stopped.get("exitCode")
    phase = pod["status"].get("phase", "")
    is_failed = bool(code) or phase == "Failed"
    why = _end_reason(pod)
    word = "Failed" if is_failed else "Succeeded"
    # a pod that was evicted has failed, although its command may have ended well
    return QueuedJob("ended", f"{word} ({why})" if why else word, None if code == 0 and is_failed else code)


def _lost_pods(agents: Iterable[ApiObject]) -> Iterator[str]:
    for pod in agents:
        if pod.get("status", {}).get("phase") == "Failed":
            code = (_container_state(pod, "terminated") or {}).get("exitCode")
            why = _end_reason(pod) or (f"exit code {code}" if code is not None else "Failed")
            yield f"{pod['metadata']['name']} on {pod['spec'].get('nodeName', 'no node')}: {why}"


def _end_reason(pod: ApiObject) -> str:
    """Reason for the end of *pod* that its exit code does not tell; empty: there is none."""
    # who has ended it says more than what became of its process
    evicted = [pod["status"], *_conditions(pod, "DisruptionTarget")]
    stopped = _container_state(pod, "terminated") or {}
    explained = [each for each in (*evicted, stopped) if each.get("reason") not in (None, *_PLAIN_ENDS)]
    return _reason_text(explained[0]) if explained else ""


def _waiting_text(pod: ApiObject, pull_errors: MutableMapping[str, str]) -> str:
    """Reason why *pod* does not run yet; empty: it does, or has not said."""
    if waiting := _container_state(pod, "waiting"):
        image = pod["spec"]["containers"][0]["image"]
        if waiting.get("reason") in _PULL_REASONS:
            if found := _PULL_ERROR.fullmatch(waiting.get("message", "")):
                pull_errors[image] = _one_line(found[1])
            why = pull_errors.get(image, "")
            return f"image {image} can't be pulled{f': {why}' if why else ''}"
        return _reason_text(waiting)
    unscheduled = [each for each in _conditions(pod, "PodScheduled", "False") if each.get("reason")]
    return _reason_text(unscheduled[0]) if unscheduled else ""


def _failure(job: ApiObject) -> str:
    return next((_reason_text(each) for each in _conditions(job, "Failed")), "")


def _reason_text(state: ApiObject) -> str:
    message = _one_line(state.get("message", ""))
    return f"{state.get('reason', '')}: {message}" if message else str(state.get("reason", ""))


def _one_line(text: str) -> str:
    return shorten(" ".join(text.split()), _MAX_MESSAGE)


def _of_role(objects: Iterable[ApiObject], kind: str, role: str) -> Iterator[ApiObject]:
    for each in objects:
        if each["kind"] == kind and each["metadata"].get("labels", {}).get(ROLE_LABEL) == role:
            yield each


def _conditions(of: ApiObject, kind: str, status: str = "True") -> Iterator[ApiObject]:
    for each in of.get("status", {}).get("conditions", []):
        if each["type"] == kind and each["status"] == status:
            yield each


def _container_state(pod: ApiObject, kind: str) -> ApiObject | None:
    """State of the container of *pod*, if it is of this *kind*: waiting, running or terminated."""
    for each in pod.get("status", {}).get("containerStatuses", []):
        found: ApiObject | None = each.get("state", {}).get(kind)
        return found
    return None
