"""The files of the page: what browsers get, what programs get, and that nothing is asked of others."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import httpx
import pytest

from loader.lag import STAGES
from server.dashboard import pages
from server.dashboard.stream import MAX_WATCHERS
from tests.server.conftest import Serve
from tests.server.connections import serving
from tests.server.fake_model import FakeModel
from tests.waiting import LIMIT_SECONDS, wait_until

STATIC = files("server.dashboard") / "static"
BROWSER = {"Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


def test_browsers_get_the_page_and_programs_the_routes(serve: Serve) -> None:
    client = serve()

    page, routes = client.get("/", headers=BROWSER), client.get("/")

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<title>hotdelta</title>" in page.text
    assert routes.json()["name"] == "hotdelta"
    assert client.head("/", headers=BROWSER).headers["content-type"] == "text/html; charset=utf-8"
    assert client.head("/").status_code == 200
    assert client.post("/", headers=BROWSER).status_code == 405


def test_a_page_may_load_nothing_from_elsewhere_and_stand_in_no_frame(serve: Serve) -> None:
    client = serve()
    for path in ("/", *pages.DASHBOARD_PATHS):
        headers = client.get(path, headers=BROWSER).headers
        assert headers["content-security-policy"].startswith("default-src 'self';"), path
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_everything_that_the_page_names_is_there(serve: Serve) -> None:
    client = serve()
    named = set(re.findall(r'(?:href|src)="([^"]+)"', client.get("/", headers=BROWSER).text))
    for path in pages.DASHBOARD_PATHS:
        if path.endswith(".js"):
            named |= {
                f"/dashboard/{name}" for name in re.findall(r'from "\./([^"]+)"', client.get(path).text)
            }

    assert named == pages.DASHBOARD_PATHS
    for path in named:
        assert client.get(path).status_code == 200


@pytest.mark.parametrize("name", [name for name in pages._FILES if "/" not in name])
def test_no_file_of_ours_names_another_host(name: str) -> None:
    text = STATIC.joinpath(name).read_text()

    assert set(re.findall(r"https?://[^\s\"'<)]+", text)) <= {"http://www.w3.org/2000/svg"}


def test_every_stage_after_training_is_in_the_chart() -> None:
    groups = re.findall(r"stages: \[(.*?)\]", STATIC.joinpath("charts.js").read_text())
    drawn = [stage for group in groups for stage in re.findall(r'"(\w+)"', group)]

    assert sorted(drawn) == sorted(stage for stage in STAGES if stage != "event_to_trained")


def test_what_is_bundled_has_its_licence_beside_it() -> None:
    licence = STATIC.joinpath("uplot", "LICENSE").read_text()

    assert "The MIT License" in licence
    assert "Leon Sorokin" in licence


def test_a_file_that_a_browser_has_is_not_sent_again(serve: Serve) -> None:
    client = serve()
    tag = client.get("/dashboard/dashboard.js").headers["etag"]

    again = client.get("/dashboard/dashboard.js", headers={"If-None-Match": tag})

    assert (again.status_code, again.content) == (304, b"")


def test_files_beside_the_page_are_not_served(serve: Serve) -> None:
    client = serve()
    for path in ("/dashboard/", "/dashboard/index.html", "/dashboard/../app.py", "/dashboard/uplot/LICENSE"):
        assert client.get(path).status_code == 404, path


def test_with_tokens_the_page_is_for_everybody_and_what_it_shows_is_not(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("0123456789abcdef0123456789\n")
    client = serve(predict_token_file=tmp_path / "tokens")

    assert client.get("/", headers=BROWSER).status_code == 200
    assert client.get("/dashboard/dashboard.js").status_code == 200
    assert client.get(pages.EVENTS).status_code == 401


def test_no_more_look_than_may_and_each_that_leaves_makes_room() -> None:
    with serving(FakeModel()) as (host, port):
        url = f"http://{host}:{port}{pages.EVENTS}"
        clients = [httpx.Client(timeout=LIMIT_SECONDS) for _ in range(MAX_WATCHERS)]
        looking = [client.send(client.build_request("GET", url), stream=True) for client in clients]
        for answer in looking:
            assert next(answer.iter_bytes()).startswith(b'data: {"version"')
        assert httpx.get(url, timeout=LIMIT_SECONDS).status_code == 503

        looking[0].close()
        clients[0].close()

        def is_seen() -> bool:
            with httpx.stream("GET", url, timeout=LIMIT_SECONDS) as answer:
                return answer.status_code == 200

        wait_until(is_seen, "there is room again")
        for answer, client in zip(looking[1:], clients[1:], strict=True):
            answer.close()
            client.close()
