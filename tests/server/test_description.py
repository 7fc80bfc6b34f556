"""Is the description of the routes true? Asked by schemathesis, of a real server with a real model."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.app import create_app
from server.cli import _make_loader
from tests.golden.golden_chains import golden_chain
from tests.server.application import configuration_of
from tests.server.conftest import Serve
from tests.server.connections import serving_app
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
TOKEN = "operators-token-012345"  # noqa: S105 - of this test


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that follows a chain that was trained, with limits that are soon reached."""
    directory = tmp_path_factory.mktemp("described")
    run_dir = golden_chain("keras").copy_to(directory)
    (directory / "tokens").write_text(f"ops:{TOKEN}\n")
    configuration = configuration_of(
        run_dir.parent / "export",
        run_dir,
        admin_token_file=directory / "tokens",
        state_dir=directory / "state",
        max_rows=5,
        max_wait_ms=3,
    )
    app = create_app(configuration, functools.partial(_make_loader, is_one_model=True))
    with serving_app(app) as (host, port):
        address = f"http://{host}:{port}"
        wait_until(
            lambda: httpx.get(f"{address}/readyz", timeout=LIMIT_SECONDS).status_code == 200,
            "the server is ready",
        )
        yield address


def test_schemathesis_finds_nothing(url: str, tmp_path: Path) -> None:
    options = ["--checks", "all", "--phases", "examples,coverage,fuzzing", "--max-examples", "6"]
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        str(ROOT / "tests/server/schemathesis.toml"),
    ]
    command += [
        "run",
        f"{url}/openapi.json",
        *options,
        "--generation-deterministic",
        "--no-color",
        "--suppress-health-check",
        "all",
    ]
    command += ["-H", f"Authorization: Bearer {TOKEN}"]
    hooks = {"SCHEMATHESIS_HOOKS": "tests.server.what_schemas_cannot_say", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **hooks},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    # It has asked, and everything.
    (selected, total) = re.findall(r"Selected: (\d+)/(\d+)", done.stdout)[0]
    assert selected == total
    assert int(re.findall(r"(\d+) generated", done.stdout)[0]) > 500


def test_the_description_says_what_the_signature_of_the_served_model_takes(url: str) -> None:
    paths = httpx.get(f"{url}/openapi.json", timeout=LIMIT_SECONDS).json()["paths"]

    (rows, columns) = schema_of(paths, "/predict")["anyOf"]
    user = rows["properties"]["instances"]["items"]["properties"]["user"]
    assert (user["minItems"], user["maxItems"]) == (2, 2)
    assert user["items"] == {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
    assert columns["properties"]["inputs"]["required"] == ["country", "user"]
    assert columns["properties"]["inputs"]["properties"]["country"]["maxItems"] == 5
    (model,) = paths["/v1/models/{model}:predict"]["post"]["parameters"]
    assert model["schema"]["enum"] == ["export"]


def schema_of(paths: dict[str, Any], path: str) -> Any:
    return paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]


def test_whoever_needs_a_token_is_told_so_and_learns_nothing_of_the_model(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(f"{TOKEN}\n")
    paths = serve(predict_token_file=tmp_path / "tokens").get("/openapi.json").json()["paths"]

    needed = {path for path, methods in paths.items() for found in methods.values() if "security" in found}
    probes = {path for path in paths if path.endswith("/ready")}
    assert len(probes) == 4
    assert needed == paths.keys() - probes - {"/", "/healthz", "/readyz", "/v2/health/live"}
    assert all("401" in found["responses"] for path in needed for found in paths[path].values())
    assert "ids" not in str(schema_of(paths, "/predict"))


def test_a_model_that_is_not_there_yet_is_described_when_it_is(serve: Serve) -> None:
    model = FakeModel(position=None)
    client = serve(model)
    before = client.get("/openapi.json").json()["paths"]
    model.position = FakeModel().position
    after = client.get("/openapi.json").json()["paths"]

    assert before.keys() == after.keys()
    assert "'ids'" not in str(schema_of(before, "/predict"))
    assert "'ids'" in str(schema_of(after, "/predict"))


def test_the_page_for_browsers_asks_no_other_host(serve: Serve) -> None:
    client = serve()
    page = client.get("/docs")

    assert page.status_code == 200
    assert re.findall(r"https?:|//\w", page.text) == []
    assert "default-src 'self'" in page.headers["Content-Security-Policy"]
    loaded = re.findall(r"(?:src|href)=\"([^\"]+)\"", page.text)
    assert len(loaded) == 3
    for path in [*loaded, *re.findall(r"url: '([^']+)'", page.text)]:
        assert client.get(f"/{path}").status_code == 200
        assert client.head(f"/{path}").status_code in (200, 405)
