"""Manifests of a run: the controller's job, the agents' jobs, and shared objects."""

from __future__ import annotations

import base64
import dataclasses
import io
import shlex
from typing import TYPE_CHECKING, Any

from distbench.ipc.channels import CONTROLLERS_VARIABLE, NODE_VARIABLE, PATIENCE_VARIABLE, TOKEN_VARIABLE
from distbench.launchers.kubernetes.controller_command import (
    ARCHIVE,
    REPORTS_FOLDER,
    SUITE_FOLDER,
    config_key,
    controller_command,
    mounted_folder,
)
from distbench.launchers.nodes import AGENT_ARGUMENTS
from distbench.system.machine import RUN_ID_VARIABLE

if TYPE_CHECKING:
    from distbench.launchers.base import ControllerCommand
    from distbench.launchers.kubernetes import Kubernetes

AGENT_COMMAND = ("python", *AGENT_ARGUMENTS)
"""Command of an agent's container."""
RESERVED_POD_KEYS = frozenset({"affinity", "containers", "hostname", "restartPolicy", "subdomain", "volumes"})
"""Keys of a pod's spec that are set here."""

RUN_LABEL, ROLE_LABEL = "distbench/run", "distbench/role"
"""Labels of jobs and pods: the name of the run; controller or agent."""

OBJECT_KINDS = {"job": "jobs,services,secrets,configmaps", "jobset": "jobsets,secrets,configmaps"}
"""Option ``kind`` of the launcher -> the kinds of objects that a run has."""

_RESOURCES = {"requests": {"cpu": 1, "memory": "2Gi"}}


class Manifests:
    """The objects of one run, as Kubernetes' API has them."""

    def __init__(
        self, options: Kubernetes, controller: ControllerCommand, name: str, token: str, archive: bytes = b""
    ) -> None:
        """Describe them.

        Args:
            name: Name of the run, in this namespace.
            token: Token of its agents.
            archive: Files of earlier sessions of the run.
        """
        self._options, self._run, self._name, self._token = options, controller, name, token
        self._archive, self._is_set = archive, options.kind == "jobset"
        self._reports_folder = mounted_folder(controller)

    def to_yaml(self) -> str:
        """All objects as YAML, with comments on how to follow the run and fetch its results."""
        from ruamel.yaml import YAML

        writer, text = YAML(), io.StringIO()
        writer.indent(mapping=2, sequence=4, offset=2)
        # a command stays on its line
        writer.width = 10_000
        writer.representer.ignore_aliases = lambda *_: True
        writer.dump_all([_with_literal_blocks(each) for each in self.objects()], text)
        return "".join(f"# {line}\n" for line in self._advice()) + text.getvalue()

    def objects(self) -> list[dict[str, Any]]:
        """Every object, those that others need first."""
        needed = [self._secret(), self._suite()]
        if self._is_set:
            return [*needed, self._job_set()]
        jobs = [
            self._job("controller", "controller", self._controller_job()),
            self._job("agents", "agent", self._agents_job()),
        ]
        return [*needed, self._service(), *jobs]

    def _advice(self) -> list[str]:
        at, job = f"kubectl --namespace {self._options.namespace}", f"job/{self._controller}"
        chosen = f"{OBJECT_KINDS[self._options.kind]} --selector {RUN_LABEL}={self._name}"
        remove = f"remove:  {at} delete {chosen}"
        if self._run.folder:
            return [f"follow:  distbench attach {shlex.quote(str(self._run.folder))}", remove]
        fetch = f"{at} exec {job} -- tar -C {REPORTS_FOLDER} -cf - . | tar -C reports -xf -"
        return [
            f"follow:  {at} logs --follow {job}",
            f"results: in the claim {self._options.claim}" if self._options.claim else f"fetch:   {fetch}",
            remove,
        ]

    @property
    def _controller(self) -> str:
        """Name of the controller's job."""
        return f"{self._name}-controller{'-0' if self._is_set else ''}"

    @property
    def _address(self) -> str:
        """Name of the controller's pod in the cluster's DNS, which a JobSet provides by itself."""
        host = f"{self._controller}-0" if self._is_set else "controller"
        return f"{host}.{self._name}:{self._options.port}"

    def _labels(self, role: str = "") -> dict[str, str]:
        of_role = {ROLE_LABEL: role} if role else {}
        own = {"app.kubernetes.io/name": "distbench", RUN_LABEL: self._name, **of_role}
        return {**self._options.labels, **own}

    def _object(
        self, version: str, kind: str, content: dict[str, Any], name: str = "", role: str = ""
    ) -> dict[str, Any]:
        metadata = {
            "name": name or self._name,
            "namespace": self._options.namespace,
            "labels": self._labels(role),
        }
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    def _secret(self) -> dict[str, Any]:
        return self._object("v1", "Secret", {"type": "Opaque", "stringData": {"token": self._token}})

    def _suite(self) -> dict[str, Any]:
        texts = {config_key(file): text for file, text in self._run.files.items()}
        packed = {ARCHIVE: base64.b64encode(self._archive).decode()} if self._archive else {}
        content = {**({"data": texts} if texts else {}), **({"binaryData": packed} if packed else {})}
        return self._object("v1", "ConfigMap", content)

    def _service(self) -> dict[str, Any]:
        """Service that gives the controller's pod a name, from before it is ready."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {RUN_LABEL: self._name, ROLE_LABEL: "controller"},
        }
        return self._object("v1", "Service", {"spec": spec})

    def _job(self, name: str, role: str, spec: dict[str, Any]) -> dict[str, Any]:
        ends = {
            "activeDeadlineSeconds": self._options.active_deadline_seconds,
            "ttlSecondsAfterFinished": self._options.ttl_seconds_after_finished,
        }
        content = {"spec": {**ends, **spec}}
        return self._object("batch/v1", "Job", content, f"{self._name}-{name}", role)

    def _job_set(self) -> dict[str, Any]:
        limit = {"activeDeadlineSeconds": self._options.active_deadline_seconds}
        jobs = [("controller", "controller", self._controller_job()), ("agents", "agent", self._agents_job())]
        spec = {
            "network": {
                "enableDNSHostnames": True,
                "subdomain": self._name,
                "publishNotReadyAddresses": True,
            },
            "failurePolicy": {"maxRestarts": 0},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": ["controller"]},
            "ttlSecondsAfterFinished": self._options.ttl_seconds_after_finished,
            "replicatedJobs": [
                {
                    "name": name,
                    "replicas": 1,
                    "template": {"metadata": {"labels": self._labels(role)}, "spec": {**limit, **job}},
                }
                for name, role, job in jobs
            ],
        }
        return self._object("jobset.x-k8s.io/v1alpha2", "JobSet", {"spec": spec})

    def _controller_job(self) -> dict[str, Any]:
        named = {} if self._is_set else {"hostname": "controller", "subdomain": self._name}
        container = {
            "command": controller_command(
                self._run,
                self._name,
                self._non_default_options(),
                claim=self._options.claim,
                keep=self._options.keep,
            ),
            "env": [self._secret_token(), *self._cache()],
            "ports": [{"name": "agents", "containerPort": self._options.port}],
            "resources": _RESOURCES,
            "volumeMounts": [
                {"name": "suite", "mountPath": SUITE_FOLDER, "readOnly": True},
                {"name": "reports", "mountPath": self._reports_folder},
            ],
        }
        volumes = [{"name": "suite", "configMap": {"name": self._name}}, self._reports()]
        pod = {**named, "terminationGracePeriodSeconds": 60}
        return {"backoffLimit": 0, "template": self._pod("controller", pod, container, volumes)}

    def _non_default_options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        default, given = type(self._options)(), self._options
        # a plug-in holds tuples where its class says lists
        options = {
            field.name: _with_literal_blocks(getattr(given, field.name))
            for field in dataclasses.fields(given)
        }
        return {name: value for name, value in options.items() if value != getattr(default, name)}

    def _agents_job(self) -> dict[str, Any]:
        options = self._options
        given = {
            RUN_ID_VARIABLE: self._name,
            CONTROLLERS_VARIABLE: self._address,
            PATIENCE_VARIABLE: f"{options.start_timeout:g}",
            **options.env,
        }
        node = {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        shared = [{"name": "reports", "mountPath": self._reports_folder}] if options.claim else []
        container = {
            "command": list(AGENT_COMMAND),
            "env": [
                self._secret_token(),
                *self._cache(),
                node,
                *({"name": n, "value": v} for n, v in given.items()),
            ],
            "resources": self._resources(),
            **({"securityContext": options.security_context} if options.security_context else {}),
            "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}, *shared],
        }
        memory = {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": options.shared_memory}}
        volumes = [memory, *([self._reports()] if options.claim else [])]
        # two agents on one node would measure the loopback interface
        affinity = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {RUN_LABEL: self._name, ROLE_LABEL: "agent"}},
        }
        pod = {
            "terminationGracePeriodSeconds": 15,
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [affinity]},
            },
        }
        template = self._pod("agent", pod, container, volumes)
        if options.annotations:
            template["metadata"]["annotations"] = options.annotations
        return {
            "completionMode": "Indexed",
            "completions": options.nnodes,
            "parallelism": options.nnodes,
            "backoffLimit": options.backoff_limit,
            "template": template,
        }

    def _pod(
        self, role: str, spec: dict[str, Any], container: dict[str, Any], volumes: list[dict[str, Any]]
    ) -> dict[str, Any]:
        account = self._options.service_account
        whole = {
            **self._options.pod,
            **({"serviceAccountName": account} if account else {}),
            **spec,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [{"name": role, "image": self._options.image, **container}],
            "volumes": volumes,
        }
        return {"metadata": {"labels": self._labels(role)}, "spec": whole}

    def _secret_token(self) -> dict[str, Any]:
        return {"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": {"name": self._name, "key": "token"}}}

    def _cache(self) -> list[dict[str, Any]]:
        """Environment that puts the cache where all nodes see it, so that each item is built once."""
        folder = f"{self._reports_folder}/.cache"
        return [{"name": "DISTBENCH_CACHE", "value": folder}] if self._options.claim else []

    def _reports(self) -> dict[str, Any]:
        claim = self._options.claim
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        return {"name": "reports", **source}

    def _resources(self) -> dict[str, Any]:
        if not self._options.gpus:
            return self._options.resources
        limits = {**self._options.resources.get("limits", {}), "nvidia.com/gpu": self._options.gpus}
        return {**self._options.resources, "limits": limits}


def _with_literal_blocks(value: Any) -> Any:
    """Write texts of several lines in *value* as literal blocks."""
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(value, dict):
        return {key: _with_literal_blocks(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_literal_blocks(inner) for inner in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
