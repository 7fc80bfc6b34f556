"""Deployments whose trainer, exporter and servers share an object store, and no volume."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import examples.train
import exporter.arguments
from hotdelta.errors import StoreError
from hotdelta.remote.publish.spool import SPOOL_VARIABLE, SpoolOptions
from hotdelta.remote.stores.opening import open_store
from tests.deploy.kustomized import MERGED_BY, rendered
from tests.deploy.manifests import COMPOSE_STORE, KUBERNETES_STORE, ROOT, Container, compose, containers, pods
from tests.deploy.test_containers import configuration
from tests.remote.servers import free_ports
from tests.waiting import wait_until

CONTAINERS = [container for container in containers() if container.uses_a_store]
SERVERS = [container for container in CONTAINERS if container.program == "server"]
TRAINERS = [container for container in CONTAINERS if container.program == "examples.train"]
EXAMPLE = ROOT / "deploy" / "store.env.example"
SECRETS = {"TRAINER_SECRET": "of-the-trainer", "SERVER_SECRET": "of-servers"}
_INTERPOLATED = re.compile(r"(?<!\$)\$\{(\w+)[^}]*}")
_UNITS = {"Gi": 1024**3}


@pytest.mark.parametrize("container", TRAINERS, ids=str)
def test_a_trainer_may_publish_before_it_is_killed_and_keeps_its_spool(container: Container) -> None:
    saving_seconds = 30

    assert container.stop_seconds >= SpoolOptions().publish_timeout_secs + saving_seconds
    assert container.environment[SPOOL_VARIABLE] in container.writable


@pytest.mark.parametrize("deployment", ["compose-store", "kubernetes-store"])
def test_all_programs_mean_the_same_places(deployment: str) -> None:
    runs, exports = set(), set()
    for container in CONTAINERS:
        if container.deployment != deployment:
            continue
        if container.program == "server":
            (model,) = configuration(container).models
            runs.add(str(model.checkpoint_dir))
            exports.add(str(model.export_dir))
        elif container.program == "exporter":
            told = exporter.arguments.make_parser().parse_args(container.arguments)
            runs.add(str(told.checkpoint_dir))
            exports.add(str(told.export_dir))
        else:
            runs.add(examples.train._parser().parse_args(container.arguments).checkpoint_dir)

    assert [len(runs), len(exports)] == [1, 1]
    assert all(place.startswith("s3://") for place in runs | exports)


def test_one_server_goes_ahead_and_the_other_asks_it() -> None:
    ahead, behind = (item for item in SERVERS if item.deployment == "compose-store")
    (of_first,), (of_second,) = (configuration(item).models for item in (ahead, behind))
    name = ahead.name.split()[1]

    assert of_first.behind_server is None
    assert of_second.behind_server == f"http://{name}:{configuration(ahead).server.port}"
    assert of_second.behind_seconds > 0


def test_secrets_are_asked_for_by_name_and_stand_in_no_file() -> None:
    text = COMPOSE_STORE.read_text()
    asked = set(_INTERPOLATED.findall(text))

    assert re.findall(r"^(\w+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE) == [(name, "") for name in SECRETS]
    assert asked == set(SECRETS)
    assert all(":?" in found for found in re.findall(r"(?<!\$)\$\{[^}]*}", text))
    assert "/deploy/.env" in (ROOT / ".gitignore").read_text().splitlines()
    for container in CONTAINERS:
        secret = container.environment.get("AWS_SECRET_ACCESS_KEY", "${SECRET:?}")
        assert _INTERPOLATED.fullmatch(secret), container


def test_only_those_who_write_have_credentials_that_may() -> None:
    accounts = {
        item["metadata"]["name"] for item in rendered(KUBERNETES_STORE) if item["kind"] == "ServiceAccount"
    }
    used = set()
    for name, template in pods(KUBERNETES_STORE):
        role = "reader" if name == "hotdelta-server" else "writer"
        (container,) = template["spec"]["containers"]
        secrets = [source["secretRef"] for source in container["envFrom"] if "secretRef" in source]
        assert secrets == [{"name": f"hotdelta-store-{role}", "optional": True}], name
        assert template["spec"]["serviceAccountName"] == f"hotdelta-{role}", name
        used.add(template["spec"]["serviceAccountName"])
    assert used == accounts
    for container in CONTAINERS:
        if container.deployment == "compose-store":
            key = "server" if container.program == "server" else "trainer"
            assert container.environment["AWS_ACCESS_KEY_ID"] == key, container


def test_no_volume_is_shared_by_pods() -> None:
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for _, template in pods(KUBERNETES_STORE)
        for volume in template["spec"]["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    modes = [
        item["spec"]["accessModes"]
        for item in rendered(KUBERNETES_STORE)
        if item["kind"] == "PersistentVolumeClaim"
    ]

    assert claims == ["hotdelta-spool"]
    assert modes == [["ReadWriteOnce"]]


def test_both_mirrors_of_a_pod_have_room_before_it_is_evicted() -> None:
    (server,) = (item for item in SERVERS if item.deployment == "kubernetes-store")
    (model,) = configuration(server).models
    ((_, template),) = ((name, found) for name, found in pods(KUBERNETES_STORE) if name == "hotdelta-server")
    volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
    limit = volumes["mirror"]["emptyDir"]["sizeLimit"]

    # And a full that is on its way.
    assert _bytes(limit) >= 3 * model.mirror_bytes
    assert template["spec"]["containers"][0]["resources"]["requests"]["ephemeral-storage"] == limit


def test_kustomize_makes_of_the_overlay_what_these_tests_read() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        [kubectl, "kustomize", str(KUBERNETES_STORE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert _ordered(yaml.safe_load_all(done.stdout)) == _ordered(rendered(KUBERNETES_STORE))


def test_the_store_lets_the_trainer_write_and_servers_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own script and that of the bucket run here, with other directories and ports."""
    with running_store(tmp_path) as (endpoint, make_bucket):
        first, second = make_bucket(), make_bucket()
        assert first.returncode == second.returncode == 0, first.stdout + second.stdout
        address = f"s3://models/run?endpoint={endpoint}"
        for name, value in _credentials("trainer").items():
            monkeypatch.setenv(name, value)
        open_store(address).put_new("log/deltas/1", b"from the trainer")
        for name, value in _credentials("server").items():
            monkeypatch.setenv(name, value)
        reader = open_store(address)

        assert reader.get("log/deltas/1", max_bytes=100) == b"from the trainer"
        assert [entry.name for entry in reader.list_after("log/")] == ["log/deltas/1"]
        with pytest.raises(StoreError, match="403"):
            reader.put_new("log/deltas/2", b"from a server")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of nobody")
        with pytest.raises(StoreError, match="403"):
            open_store(address).get("log/deltas/1", max_bytes=100)


@contextmanager
def running_store(directory: Path) -> Iterator[tuple[str, Any]]:
    """Its endpoint, and what runs the service that makes the bucket."""
    services = compose(COMPOSE_STORE)["services"]
    ports = free_ports(8)
    s3, master = ports[:2]
    named = [f"-{name}.port={port}" for name, port in zip(("volume", "filer"), ports[2:4], strict=True)]
    named += [
        f"-{name}.port.grpc={port}"
        for name, port in zip(("s3", "master", "volume", "filer"), ports[4:], strict=True)
    ]
    named += [
        f"-master.port={master}",
        f"-s3.localSocket={directory}/s3.sock",
        f"-filer.localSocket={directory}/filer.sock",
    ]
    there = {
        "/tmp/": f"{directory}/",  # noqa: S108 - that of the container
        "-dir=/store": f"-dir={directory}/store",
        "-s3.ip.bind=0.0.0.0": "-s3.ip.bind=127.0.0.1",
        "-s3.port=8333": f"-s3.port={s3} {' '.join(named)}",
        "127.0.0.1:9333": f"127.0.0.1:{master}.{ports[5]}",
    }
    (directory / "store").mkdir()
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(directory),
        **SECRETS,
    }

    def make_bucket() -> subprocess.CompletedProcess[str]:
        command = _command(services["bucket"], there)
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            _command(services["store"], there), env=environment, stdout=log, stderr=log, cwd=directory
        )
    try:
        asked = services["store"]["healthcheck"]["test"][-1].replace("8333", str(s3))
        wait_until(lambda: _answers(asked), lambda: (directory / "log").read_text()[-3000:], limit_seconds=90)
        yield f"http://127.0.0.1:{s3}", make_bucket
    finally:
        process.kill()
        process.wait()


def _command(service: Mapping[str, Any], there: Mapping[str, str]) -> list[str]:
    (script,) = service["command"]
    script = script.replace("$$", "$")
    for text, other in there.items():
        script = script.replace(text, other)
    return [*service["entrypoint"], script]


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.TransportError:
        return False


def _credentials(name: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": SECRETS[f"{name.upper()}_SECRET"]}


def _bytes(text: str) -> int:
    return int(text[:-2]) * _UNITS[text[-2:]]


def _ordered(documents: Any) -> list[str]:
    """One text for each, whatever the order of what names tell apart; images without their tags."""
    return sorted(json.dumps(_sorted(document), sort_keys=True) for document in documents)


def _sorted(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: _sorted(item, name) for name, item in value.items()}
    if isinstance(value, list):
        items = [_sorted(item) for item in value]
        return sorted(items, key=lambda item: str(item[MERGED_BY[key]])) if key in MERGED_BY else items
    return value.partition(":")[0] if key == "image" else value
