"""What the compose files and the files for Kubernetes run is what our programs take, and no more than they need."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import examples.train
import exporter.arguments
import server.cli
from hotdelta import __version__
from hotdelta.remote.stores.address import Address
from server.configuration import Configuration, read_configuration
from server.status.routes import _ROUTES
from tests.deploy.manifests import (
    BESIDE,
    COMPOSE,
    COMPOSE_STORE,
    KUBERNETES,
    KUBERNETES_STORE,
    ROOT,
    TEMPORARY,
    Container,
    compose,
    containers,
    documents,
    our_services,
    pods,
)

CONTAINERS = containers()
SERVERS = [container for container in CONTAINERS if container.program == "server"]
# A server that has not come to rest by itself ends so long after --stop-seconds.
LEAVES_AFTER_SECONDS = 5

of_each_cluster = pytest.mark.parametrize("cluster", [KUBERNETES, KUBERNETES_STORE], ids=["volumes", "store"])
of_each_compose_file = pytest.mark.parametrize("file", [COMPOSE, COMPOSE_STORE], ids=["volumes", "store"])
of_each = pytest.mark.parametrize("container", CONTAINERS, ids=str)
of_each_server = pytest.mark.parametrize("container", SERVERS, ids=str)


def configuration(container: Container) -> Configuration:
    flags = vars(server.cli._parser().parse_args(container.arguments))
    return read_configuration(flags, container.environment)


@pytest.mark.parametrize("deployment", ["compose", "compose-store", "kubernetes", "kubernetes-store"])
def test_there_are_a_trainer_an_exporter_and_servers(deployment: str) -> None:
    servers = 2 if deployment.startswith("compose") else 1

    assert sorted(item.program for item in CONTAINERS if item.deployment == deployment) == [
        "examples.train",
        "exporter",
        *["server"] * servers,
    ]


@of_each
def test_a_command_is_one_that_its_program_takes(container: Container) -> None:
    if container.program == "server":
        configuration(container)
    elif container.program == "exporter":
        exporter.arguments.make_parser().parse_args(container.arguments)
    else:
        examples.train._parser().parse_args(container.arguments)


@of_each
def test_every_directory_of_a_command_is_a_volume(container: Container) -> None:
    told = [*container.command, *container.environment.values()]
    directories = set(re.findall(r"/data/\w+", " ".join(told)))

    assert directories == {path for path in container.writable | container.read_only if path != TEMPORARY}


@of_each_server
def test_a_server_writes_neither_to_the_chain_nor_to_the_exports(container: Container) -> None:
    (model,) = configuration(container).models

    own = {str(model.state_dir), TEMPORARY}
    if container.uses_a_store:
        assert isinstance(model.checkpoint_dir, Address)
        assert isinstance(model.export_dir, Address)
        assert container.read_only == set()
        own.add(str(model.mirror_dir))
    else:
        assert {str(model.checkpoint_dir), str(model.export_dir)} == container.read_only
    assert container.writable == own


@of_each_server
def test_what_asks_a_server_how_it_is_asks_a_route_that_it_has(container: Container) -> None:
    settings = configuration(container).server

    assert container.probes
    for port, path in container.probes:
        assert port == settings.port
        assert f"GET {path}" in _ROUTES


@pytest.mark.parametrize(
    "container", [item for item in CONTAINERS if item.program == "examples.train"], ids=str
)
def test_what_asks_a_trainer_how_it_is_asks_its_metrics(container: Container) -> None:
    options = examples.train._parser().parse_args(container.arguments)

    assert container.probes
    assert {f"0.0.0.0:{port}" for port, _ in container.probes} == {options.metrics_port}
    assert {path for _, path in container.probes} == {"/metrics"}


@of_each_server
def test_a_server_is_not_killed_before_it_has_had_its_time_to_stop(container: Container) -> None:
    assert container.stop_seconds >= configuration(container).server.stop_seconds + LEAVES_AFTER_SECONDS


@of_each_cluster
def test_only_readiness_waits_for_a_model(cluster: Path) -> None:
    (template,) = [template for name, template in pods(cluster) if name == "hotdelta-server"]
    (container,) = template["spec"]["containers"]

    assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"


@of_each_cluster
def test_no_container_of_a_pod_is_root_or_writes_to_its_root(cluster: Path) -> None:
    user = re.findall(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for name, template in pods(cluster):
        of_pod = template["spec"]["securityContext"]
        assert of_pod["runAsNonRoot"], name
        assert [(str(of_pod["runAsUser"]), str(of_pod["runAsGroup"]))] == user, name
        for container in template["spec"]["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["limits"]["memory"]


@of_each_compose_file
def test_no_service_is_root_or_writes_to_its_root(file: Path) -> None:
    for service in our_services(file).values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert "user" not in service


@of_each_cluster
def test_services_of_the_cluster_do_not_become_settings(cluster: Path) -> None:
    """A service that is called hotdelta would set HOTDELTA_PORT to tcp://..., which no server starts with."""
    assert [
        name for name, template in pods(cluster) if template["spec"].get("enableServiceLinks", True)
    ] == []


@of_each_cluster
def test_services_monitors_and_budgets_find_what_they_are_for(cluster: Path) -> None:
    labels = {name: template["metadata"]["labels"] for name, template in pods(cluster)}
    ports = {
        name: {
            port["name"]
            for container in template["spec"]["containers"]
            for port in container.get("ports", [])
        }
        for name, template in pods(cluster)
    }
    for document in documents(cluster):
        name = document["metadata"]["name"]
        if document["kind"] == "Service":
            assert document["spec"]["selector"] == labels[name]
            assert {port["targetPort"] for port in document["spec"]["ports"]} == ports[name]
        elif document["kind"] in ("Deployment", "PodDisruptionBudget"):
            assert document["spec"]["selector"]["matchLabels"] == labels[name]
        elif document["kind"] == "ServiceMonitor":
            (service,) = [
                item for item in documents(cluster, of="Service") if item["metadata"]["name"] == name
            ]
            assert document["spec"]["selector"]["matchLabels"] == service["metadata"]["labels"]
            assert {end["port"] for end in document["spec"]["endpoints"]} <= ports[name]


def test_alerts_find_the_jobs_that_the_cluster_makes() -> None:
    """A ServiceMonitor calls a job by the service, or by the label of it that `jobLabel` names."""
    services = {item["metadata"]["name"]: item["metadata"]["labels"] for item in documents(of="Service")}
    jobs = {
        services[item["metadata"]["name"]].get(item["spec"].get("jobLabel"), item["metadata"]["name"])
        for item in documents(of="ServiceMonitor")
    }

    assert jobs == set(re.findall(r'job="([\w-]+)"', (ROOT / "deploy/prometheus/alerts.yml").read_text()))


@of_each_cluster
def test_volumes_that_pods_claim_are_there(cluster: Path) -> None:
    claims = {item["metadata"]["name"] for item in documents(cluster, of="PersistentVolumeClaim")}
    claimed = set()
    for _, template in pods(cluster):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        for container in template["spec"]["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        claimed |= {
            volume["persistentVolumeClaim"]["claimName"]
            for volume in volumes.values()
            if "persistentVolumeClaim" in volume
        }

    assert claimed == claims


def test_every_file_for_a_plain_cluster_is_applied_with_the_image_of_this_version() -> None:
    kustomization = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())

    assert set(kustomization["resources"]) == {path.name for path in KUBERNETES.glob("*.yaml")} - BESIDE
    assert [image["newTag"] for image in kustomization["images"]] == [__version__]


@pytest.mark.parametrize("deployment", ["compose", "compose-store"])
def test_prometheus_asks_each_server_and_the_trainer_of_the_compose_files(deployment: str) -> None:
    prometheus = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    targets = {
        target
        for job in prometheus["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    }
    asked = {
        f"{container.name.removeprefix(deployment).strip()}:{port}"
        for container in CONTAINERS
        if container.deployment == deployment
        for port, _ in container.probes
    }

    assert targets == asked


@of_each_compose_file
def test_what_a_compose_file_mounts_is_there(file: Path) -> None:
    document = compose(file)
    used = set()
    for service in document["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in document["volumes"] or (file.parent / source).exists(), volume
            used.add(source)
    assert set(document["volumes"]) <= used


@of_each
def test_volumes_of_a_container_are_of_the_user_of_the_image(container: Container) -> None:
    """Docker gives a new volume the owner of the directory that it covers, and root where there is none."""
    (owned,) = re.findall(r"install --directory --owner hotdelta .*", (ROOT / "Dockerfile").read_text())

    assert container.writable | container.read_only <= {*re.findall(r"/data/\w+", owned), TEMPORARY}
