"""Manifests of a run: the controller's job, the agents' jobs, and shared objects."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from distbench.ipc.channels import CONTROLLERS_VARIABLE, NODE_VARIABLE, PATIENCE_VARIABLE, TOKEN_VARIABLE
from distbench.launchers.nodes import AGENT_ARGUMENTS
from distbench.system.machine import RUN_ID_VARIABLE

if TYPE_CHECKING:
    from distbench.launchers.base import ControllerCommand
    from distbench.launchers.kubernetes import Kubernetes

AGENT_COMMAND = ("python", *AGENT_ARGUMENTS)
"""Command of an agent's container."""
CONTROLLER_COMMAND = ("python", "-P", "-m", "distbench", "run")
"""Command of the controller's container, followed by the suite and the overrides."""
RESERVED_POD_KEYS = frozenset({"affinity", "containers", "hostname", "restartPolicy", "subdomain", "volumes"})
"""Keys of a pod's spec that are set here."""

_SUITE, _REPORTS = "/suite", "/reports"
_RUN, _ROLE = "distbench/run", "distbench/role"
_RESOURCES = {"requests": {"cpu": 1, "memory": "2Gi"}}
# the last "wait" is interrupted by a signal, which goes to the run, and not to the shell
_STAY_SCRIPT = (
    'trap "kill -TERM \\$!" TERM; "$@" & run=$!; wait $run; code=$?; '
    "while kill -0 $run 2>/dev/null; do wait $run; code=$?; done; "
    'echo "the run has ended with code $code; this pod stays for $0 seconds"; '
    "trap - TERM; sleep $0 & wait $!; exit $code"
)


class Manifests:
    """The objects of one run, as Kubernetes' API has them."""

    def __init__(self, options: Kubernetes, controller: ControllerCommand, name: str, token: str) -> None:
        """Describe them.

        Args:
            name: Name of the run, in this namespace.
            token: Token of its agents.
        """
        self._options, self._run, self._name, self._token = options, controller, name, token
        self._is_set = options.kind == "jobset"

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
        jobs = [self._job("controller", self._controller_job()), self._job("agents", self._agents_job())]
        return [*needed, self._service(), *jobs]

    def _advice(self) -> list[str]:
        at, job = f"kubectl --namespace {self._options.namespace}", f"job/{self._controller}"
        ends = f"{'jobset,' if self._is_set else 'job,service,'}secret,configmap"
        fetch = f"{at} exec {job} -- tar -C {_REPORTS} -cf - . | tar -C reports -xf -"
        return [
            f"follow:  {at} logs --follow {job}",
            f"results: in the claim {self._options.claim}" if self._options.claim else f"fetch:   {fetch}",
            f"remove:  {at} delete {ends} --selector {_RUN}={self._name}",
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
        own = {"app.kubernetes.io/name": "distbench", _RUN: self._name, **({_ROLE: role} if role else {})}
        return {**self._options.labels, **own}

    def _object(self, version: str, kind: str, content: dict[str, Any], name: str = "") -> dict[str, Any]:
        metadata = {
            "name": name or self._name,
            "namespace": self._options.namespace,
            "labels": self._labels(),
        }
        return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}

    def _secret(self) -> dict[str, Any]:
        return self._object("v1", "Secret", {"type": "Opaque", "stringData": {"token": self._token}})

    def _suite(self) -> dict[str, Any]:
        return self._object("v1", "ConfigMap", {"data": {self._run.suite_file: self._run.suite_text}})

    def _service(self) -> dict[str, Any]:
        """Service that gives the controller's pod a name, from before it is ready."""
        spec = {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {_RUN: self._name, _ROLE: "controller"},
        }
        return self._object("v1", "Service", {"spec": spec})

    def _job(self, role: str, spec: dict[str, Any]) -> dict[str, Any]:
        ends = {
            "activeDeadlineSeconds": self._options.active_deadline_seconds,
            "ttlSecondsAfterFinished": self._options.ttl_seconds_after_finished,
        }
        return self._object("batch/v1", "Job", {"spec": {**ends, **spec}}, f"{self._name}-{role}")

    def _job_set(self) -> dict[str, Any]:
        limit = {"activeDeadlineSeconds": self._options.active_deadline_seconds}
        jobs = [("controller", self._controller_job()), ("agents", self._agents_job())]
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
                {"name": role, "replicas": 1, "template": {"spec": {**limit, **job}}} for role, job in jobs
            ],
        }
        return self._object("jobset.x-k8s.io/v1alpha2", "JobSet", {"spec": spec})

    def _controller_job(self) -> dict[str, Any]:
        named = {} if self._is_set else {"hostname": "controller", "subdomain": self._name}
        container = {
            "command": self._controller_command(),
            "env": [self._secret_token(), *self._cache()],
            "ports": [{"name": "agents", "containerPort": self._options.port}],
            "resources": _RESOURCES,
            "volumeMounts": [
                {"name": "suite", "mountPath": _SUITE, "readOnly": True},
                {"name": "reports", "mountPath": _REPORTS},
            ],
        }
        volumes = [{"name": "suite", "configMap": {"name": self._name}}, self._reports()]
        pod = {**named, "terminationGracePeriodSeconds": 60}
        return {"backoffLimit": 0, "template": self._pod("controller", pod, container, volumes)}

    def _controller_command(self) -> list[str]:
        run = [
            *CONTROLLER_COMMAND,
            f"{_SUITE}/{self._run.suite_file}",
            "--out",
            _REPORTS,
            *_without_launcher(self._run.overrides),
            "--set",
            f"launcher={json.dumps({'kubernetes': self._non_default_options()})}",
        ]
        stays = not self._options.claim and self._options.keep
        command = ["sh", "-c", _STAY_SCRIPT, str(self._options.keep), *run] if stays else run
        # Kubernetes replaces the name of a variable in brackets by its value
        return [word.replace("$(", "$$(") for word in command]

    def _non_default_options(self) -> dict[str, Any]:
        """Options that differ from their defaults."""
        default, given = type(self._options)(), self._options
        # a plug-in holds tuples where its class says lists
        said = {
            field.name: _with_literal_blocks(getattr(given, field.name))
            for field in dataclasses.fields(given)
        }
        return {name: value for name, value in said.items() if value != getattr(default, name)}

    def _agents_job(self) -> dict[str, Any]:
        options = self._options
        given = {
            RUN_ID_VARIABLE: self._name,
            CONTROLLERS_VARIABLE: self._address,
            PATIENCE_VARIABLE: f"{options.start_timeout:g}",
            **options.env,
        }
        node = {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
        shared = [{"name": "reports", "mountPath": _REPORTS}] if options.claim else []
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
        apart = {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": {"matchLabels": {_RUN: self._name, _ROLE: "agent"}},
        }
        pod = {
            "terminationGracePeriodSeconds": 15,
            "affinity": {
                "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]},
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
        return [{"name": "DISTBENCH_CACHE", "value": f"{_REPORTS}/.cache"}] if self._options.claim else []

    def _reports(self) -> dict[str, Any]:
        claim = self._options.claim
        source = {"persistentVolumeClaim": {"claimName": claim}} if claim else {"emptyDir": {}}
        return {"name": "reports", **source}

    def _resources(self) -> dict[str, Any]:
        if not self._options.gpus:
            return self._options.resources
        limits = {**self._options.resources.get("limits", {}), "nvidia.com/gpu": self._options.gpus}
        return {**self._options.resources, "limits": limits}


def _without_launcher(overrides: Sequence[str]) -> list[str]:
    """Remove the launcher's options from *overrides*."""
    words = iter(overrides)
    kept: list[str] = []
    for word in words:
        setting = next(words) if word == "--set" else None
        if setting is None:
            kept.append(word)
        elif re.split(r"[.=\s]", setting)[0] != "launcher":
            kept += [word, setting]
    return kept


def _with_literal_blocks(value: Any) -> Any:
    """Write texts of several lines in *value* as literal blocks."""
    from ruamel.yaml.scalarstring import LiteralScalarString

    if isinstance(value, dict):
        return {key: _with_literal_blocks(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_literal_blocks(inner) for inner in value]
    return LiteralScalarString(value) if isinstance(value, str) and "\n" in value else value
