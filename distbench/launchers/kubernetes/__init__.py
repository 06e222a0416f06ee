"""``kubernetes``: ranks in pods, an agent's pod on each node, from the manifests of ``--on kubernetes``.

The command runs in a pod of its own, the controller's, and starts nothing: Kubernetes starts the agents,
which look for it at a name and a port that the manifests give to both. A submitted run has its folder in that
pod, and the follower fetches it.

The words of the options are those of https://kubernetes.io/docs/reference/kubernetes-api/.
"""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from distbench.core.bounds import Bound, Count, Positive
from distbench.core.errors import UsageError
from distbench.core.units import format_bytes
from distbench.ipc.channels import TOKEN_VARIABLE, new_token
from distbench.launchers.base import ControllerCommand, JobQueue, Submission
from distbench.launchers.cluster import ClusterLauncher
from distbench.launchers.kubernetes.folder_copy import pack
from distbench.launchers.kubernetes.manifests import AGENT_COMMAND, RESERVED_POD_KEYS, Manifests
from distbench.launchers.kubernetes.queue import CREATE_COMMAND, KubernetesQueue
from distbench.launchers.nodes import Node, NodeDifference, StartedAgents

_CORES = re.compile(r"(\d+)(m?)")
# a key of a ConfigMap
_CONFIG_MAP_KEY = re.compile(r"[\w.-]{1,250}")
_NO_LABEL = re.compile(r"[^a-z0-9]+")
# the name of a JobSet's pod, which is a label of at most 63 characters, is longer by 19
_MAX_NAME = 40
# an object takes 1 MiB (https://kubernetes.io/docs/concepts/configuration/configmap/)
_MAX_ARCHIVE_BYTES = 1_000_000


@dataclass(frozen=True)
class Kubernetes(ClusterLauncher):
    """Pods, an agent's on each node, of the manifests that --on kubernetes creates.

    The run is started by them: its command is that of a pod.
    """

    image: str = ""
    """Image with distbench, torch and what the suite imports; its working directory is that of the ranks."""
    nnodes: Count = 1
    """Nodes."""
    gpus: Annotated[int, Bound(0)] = 0
    """nvidia.com/gpu of an agent's pod, which is its number of ranks; 0: one rank per requested CPU core."""
    resources: dict[str, Any] = field(default_factory=lambda: {"requests": {"cpu": 1, "memory": "4Gi"}})
    """Resources of an agent's container: {requests: {cpu: 64, memory: 512Gi}, limits: {memory: 512Gi}}."""
    namespace: str = "default"
    """Namespace of all objects."""
    kind: Literal["job", "jobset"] = "job"
    """Jobs, that of the agents Indexed; or one JobSet (jobset.x-k8s.io/v1alpha2)."""
    shared_memory: str = "8Gi"
    """Size limit of /dev/shm in a pod of an agent; what is in it counts as memory of the container."""
    claim: str = ""
    """PersistentVolumeClaim (ReadWriteMany) with the runs, which all pods mount; empty: the controller's pod
    has the run, and stays after it."""
    keep: Annotated[int, Bound(0)] = 3600
    """Seconds for which the controller's pod stays after a run that has to be fetched from it, unless that is
    done before."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of the agents, and with them of all ranks: {NCCL_IB_HCA: mlx5}."""
    service_account: str = ""
    """Service account of the pods, whose token is not mounted; empty: the namespace's default."""
    pod: dict[str, Any] = field(default_factory=dict)
    """Further fields of the spec of every pod: {nodeSelector: {...}, tolerations: [...], imagePullSecrets:
    [...]}."""
    security_context: dict[str, Any] = field(default_factory=dict)
    """Security context of the agents' containers: {capabilities: {add: [IPC_LOCK]}} for RDMA."""
    labels: dict[str, str] = field(default_factory=dict)
    """Further labels of the jobs and pods: {kueue.x-k8s.io/queue-name: gpus}."""
    annotations: dict[str, str] = field(default_factory=dict)
    """Annotations of the agents' pods: {k8s.v1.cni.cncf.io/networks: rdma}."""
    active_deadline_seconds: Count = 14_400
    """Seconds after which Kubernetes ends the jobs."""
    ttl_seconds_after_finished: Annotated[int, Bound(0)] = 86_400
    """Seconds after which it removes them."""
    backoff_limit: Annotated[int, Bound(0)] = 0
    """Number of failed pods of agents that it replaces before the job fails."""
    port: Annotated[int, Bound(1, 65_535)] = 17_017
    """Port of the controller's pod, to which agents connect."""
    start_timeout: Positive = 600.0
    """Seconds until all agents have connected, and for the import of torch and deepspeed."""
    may_differ: list[NodeDifference] = field(default_factory=list)
    """Facts that may differ between nodes."""

    @classmethod
    def is_active(cls) -> bool:
        return TOKEN_VARIABLE in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ

    def option_problem(self) -> tuple[str, str] | None:
        if not self.image:
            return "image", "needs an image that contains distbench and torch"
        if not self.gpus and not self._cores:
            return (
                "resources",
                "without gpus, requests.cpu sets the number of ranks per pod: use whole CPU cores",
            )
        if taken := sorted(self.pod.keys() & RESERVED_POD_KEYS):
            return "pod", f"{taken[0]} is set by distbench"
        return None

    def start_hint(self) -> str | None:
        if TOKEN_VARIABLE in os.environ:
            return None
        return (
            "distbench runs as the command of a pod; start it with: distbench run SUITE --on kubernetes "
            "--nodes N"
        )

    def gpus_per_node(self) -> int | None:
        return self.gpus

    def node_list(self) -> Sequence[Node]:
        return [Node("", self.gpus or self._cores, self._cores)] * self.nnodes

    def token_and_port(self) -> tuple[str, int]:
        return os.environ[TOKEN_VARIABLE], self.port

    def start_agents(self, nodes: Sequence[Node], environment: Mapping[str, str], log: Path) -> StartedAgents:
        return _PodAgents()

    def agent_commands(self, nodes: Sequence[Node]) -> list[list[str]]:
        return [list(AGENT_COMMAND)] * len(nodes)

    def default_node_count(self) -> int:
        return self.nnodes

    def job_queue(self) -> JobQueue:
        return KubernetesQueue()

    def submission(self, controller: ControllerCommand) -> Submission:
        if mistake := self.option_problem():
            option, why = mistake
            raise UsageError(f"launcher.kubernetes.{option}: {why}")
        self._check_controller(controller)
        options = dataclasses.replace(self, nnodes=controller.nodes)
        prefix = f"distbench-{_NO_LABEL.sub('-', controller.name.lower())}"[:_MAX_NAME].strip("-")
        name, token = f"{prefix}-{secrets.token_hex(3)}", new_token()
        whole = Manifests(options, controller, name, token, self._archive(controller))
        return Submission(CREATE_COMMAND, whole.to_yaml(), secret=token)

    def _check_controller(self, controller: ControllerCommand) -> None:
        """Check that *controller* can be the command of a pod.

        Raises:
            UsageError: it can't.
        """
        if controller.folder is None:
            (suite,) = controller.files
            if not _CONFIG_MAP_KEY.fullmatch(suite):
                raise UsageError(
                    f"SUITE = {suite!r}: its name becomes a key of a ConfigMap, which allows only letters, "
                    "digits, '-', '_' and '.'; rename the file"
                )
            return
        if ":" in str(controller.folder.parent):
            raise UsageError(
                f"--out {controller.folder.parent}: pods mount a volume there, and the path of a mount has "
                "no colon; choose another folder"
            )
        if not self.keep:
            raise UsageError(
                "launcher.kubernetes.keep = 0: the folder of a run is fetched after it; use some seconds, or "
                "distbench launch"
            )
        if "--try" in controller.arguments:
            raise UsageError("--try: the run that it adds can't be fetched from a pod; leave it out")

    def _archive(self, controller: ControllerCommand) -> bytes:
        """Files that a further session of a run needs, where it does not find them in the claim.

        Raises:
            UsageError: they are too large for an object of Kubernetes.
        """
        if self.claim or controller.folder is None or controller.files:
            return b""
        packed = pack(controller.folder)
        if len(packed) > _MAX_ARCHIVE_BYTES:
            raise UsageError(
                f"--resume --on kubernetes: {controller.folder} has {format_bytes(len(packed))} for the pod, "
                f"and an object of Kubernetes takes {format_bytes(_MAX_ARCHIVE_BYTES)}; put the folder into "
                "a claim and set launcher.kubernetes.claim, or start a new run"
            )
        return packed

    @property
    def _cores(self) -> int:
        """Whole CPU cores that a pod requests."""
        of_container = {**self.resources.get("limits", {}), **self.resources.get("requests", {})}
        found = _CORES.fullmatch(str(of_container.get("cpu", "")))
        return int(found[1]) // (1000 if found[2] else 1) if found else 0


class _PodAgents(StartedAgents):
    """Agents whose pods Kubernetes starts and ends."""

    def failure(self) -> str | None:
        return None

    def stop(self) -> None:
        """Nothing to do: the agents end with the run, and their pods with them."""
