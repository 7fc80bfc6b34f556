"""The containers of the compose files and of the files for Kubernetes, as far as they run our image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.kustomized import rendered

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
COMPOSE_STORE = ROOT / "deploy" / "docker-compose.store.yml"
KUBERNETES = ROOT / "deploy" / "kubernetes"
KUBERNETES_STORE = ROOT / "deploy" / "kubernetes-object-store"
IMAGE = "hotdelta"
TEMPORARY = "/tmp"  # noqa: S108 - of the container alone
# Not for every cluster: it needs the Prometheus operator.
BESIDE = {"kustomization.yaml", "servicemonitor.yaml"}

_VARIABLE = re.compile(r"\$\((\w+)\)")
_URL = re.compile(r"http://127\.0\.0\.1:(\d+)(/\w+)")


@dataclass(frozen=True)
class Container:
    """What one of them runs, and with what; `probes` are the ports and paths that are asked how it is."""

    name: str
    command: list[str]
    environment: dict[str, str]
    writable: set[str]
    read_only: set[str]
    probes: list[tuple[int, str]]
    stop_seconds: float
    """From SIGTERM, or from what is done before it, until it is killed."""

    def __str__(self) -> str:
        return self.name

    @property
    def deployment(self) -> str:
        return self.name.split()[0]

    @property
    def uses_a_store(self) -> bool:
        return self.deployment.endswith("-store")

    @property
    def program(self) -> str:
        """`server`, `exporter`, or the module that Python runs."""
        return self.command[2] if self.command[:2] == ["python", "-m"] else self.command[0]

    @property
    def arguments(self) -> list[str]:
        return self.command[3:] if self.command[:2] == ["python", "-m"] else self.command[1:]


def compose(file: Path = COMPOSE) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document


def our_services(file: Path = COMPOSE) -> dict[str, Any]:
    return {name: service for name, service in compose(file)["services"].items() if service["image"] == IMAGE}


def documents(cluster: Path = KUBERNETES, *, of: str | None = None) -> list[dict[str, Any]]:
    """All that is for Kubernetes, or those of one kind."""
    beside = yaml.safe_load_all((KUBERNETES / "servicemonitor.yaml").read_text())
    return [document for document in (*rendered(cluster), *beside) if of in (None, document["kind"])]


def pods(cluster: Path = KUBERNETES) -> list[tuple[str, dict[str, Any]]]:
    """The templates, with the names of what makes pods of them."""
    return [
        (document["metadata"]["name"], document["spec"]["template"])
        for document in documents(cluster)
        if document["kind"] in ("Deployment", "Job")
    ]


def containers() -> list[Container]:
    return [
        *_of_compose("compose", COMPOSE),
        *_of_compose("compose-store", COMPOSE_STORE),
        *_of_kubernetes("kubernetes", KUBERNETES),
        *_of_kubernetes("kubernetes-store", KUBERNETES_STORE),
    ]


def _of_compose(deployment: str, file: Path) -> Iterator[Container]:
    for name, service in our_services(file).items():
        volumes = [text.split(":") for text in service.get("volumes", ())]
        test = " ".join(service.get("healthcheck", {}).get("test", []))
        yield Container(
            name=f"{deployment} {name}",
            command=service["command"],
            environment=service.get("environment", {}),
            writable={path for _, path, *mode in volumes if not mode} | set(service["tmpfs"]),
            read_only={path for _, path, *mode in volumes if mode == ["ro"]},
            probes=[(int(port), path) for port, path in _URL.findall(test)],
            stop_seconds=float(service.get("stop_grace_period", "10s").removesuffix("s")),
        )


def _of_kubernetes(deployment: str, cluster: Path) -> Iterator[Container]:
    settings = {item["metadata"]["name"]: item["data"] for item in documents(cluster, of="ConfigMap")}
    for name, template in pods(cluster):
        for container in template["spec"]["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
            probes = [
                container[probe]["httpGet"]
                for probe in ("startupProbe", "livenessProbe", "readinessProbe")
                if probe in container
            ]
            mounts = container["volumeMounts"]
            before = (
                container.get("lifecycle", {})
                .get("preStop", {})
                .get("exec", {})
                .get("command", ["sleep", "0"])
            )
            environment = {
                variable: value
                for source in container.get("envFrom", [])
                if "configMapRef" in source
                for variable, value in settings[source["configMapRef"]["name"]].items()
            } | {item["name"]: item["value"] for item in container.get("env", [])}
            yield Container(
                name=f"{deployment} {name}",
                command=[_expanded(word, environment) for word in container["command"]],
                environment=environment,
                writable={mount["mountPath"] for mount in mounts if not mount.get("readOnly")},
                read_only={mount["mountPath"] for mount in mounts if mount.get("readOnly")},
                probes=[(ports[probe["port"]], probe["path"]) for probe in probes],
                stop_seconds=template["spec"].get("terminationGracePeriodSeconds", 30) - float(before[1]),
            )


def _expanded(word: str, environment: dict[str, str]) -> str:
    return _VARIABLE.sub(lambda variable: environment[variable[1]], word)
