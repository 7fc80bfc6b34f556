"""The containers of docker-compose.yml and deploy/kubernetes, as far as they run our image."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
IMAGE = "hotdelta"
TEMPORARY = "/tmp"  # noqa: S108 - of the container alone
# Not for every cluster: it needs the Prometheus operator.
BESIDE = {"kustomization.yaml", "servicemonitor.yaml"}

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
    def program(self) -> str:
        """`server`, `exporter`, or the module that Python runs."""
        return self.command[2] if self.command[:2] == ["python", "-m"] else self.command[0]

    @property
    def arguments(self) -> list[str]:
        return self.command[3:] if self.command[:2] == ["python", "-m"] else self.command[1:]


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return document


def our_services() -> dict[str, Any]:
    return {name: service for name, service in compose()["services"].items() if service["image"] == IMAGE}


def documents(*, of: str | None = None) -> list[dict[str, Any]]:
    """Of all files for Kubernetes, or those of one kind."""
    paths = sorted(path for path in KUBERNETES.glob("*.yaml") if path.name != "kustomization.yaml")
    found = [document for path in paths for document in yaml.safe_load_all(path.read_text())]
    return [document for document in found if of in (None, document["kind"])]


def pods() -> list[tuple[str, dict[str, Any]]]:
    """The templates, with the names of what makes pods of them."""
    return [
        (document["metadata"]["name"], document["spec"]["template"])
        for document in documents()
        if document["kind"] in ("Deployment", "Job")
    ]


def containers() -> list[Container]:
    return [*_of_compose(), *_of_kubernetes()]


def _of_compose() -> Iterator[Container]:
    for name, service in our_services().items():
        volumes = [text.split(":") for text in service["volumes"]]
        test = " ".join(service.get("healthcheck", {}).get("test", []))
        yield Container(
            name=f"compose {name}",
            command=service["command"],
            environment=service.get("environment", {}),
            writable={path for _, path, *mode in volumes if not mode} | set(service["tmpfs"]),
            read_only={path for _, path, *mode in volumes if mode == ["ro"]},
            probes=[(int(port), path) for port, path in _URL.findall(test)],
            stop_seconds=float(service.get("stop_grace_period", "10s").removesuffix("s")),
        )


def _of_kubernetes() -> Iterator[Container]:
    for name, template in pods():
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
            yield Container(
                name=f"kubernetes {name}",
                command=container["command"],
                environment={item["name"]: item["value"] for item in container.get("env", [])},
                writable={mount["mountPath"] for mount in mounts if not mount.get("readOnly")},
                read_only={mount["mountPath"] for mount in mounts if mount.get("readOnly")},
                probes=[(ports[probe["port"]], probe["path"]) for probe in probes],
                stop_seconds=template["spec"].get("terminationGracePeriodSeconds", 30) - float(before[1]),
            )
