"""The server that goes ahead of another one is asked over HTTP, and what it says, or that it says nothing, is heard."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from hotdelta.chain import Node, Position
from hotdelta.errors import ConfigurationError, ManifestError
from loader import Ahead, HoldBack
from loader.status import LoaderStatus, Quarantined
from server.model_settings import ModelSettings
from server.models.leader import Leader, read_ahead
from tests.server.connections import serving
from tests.server.fake_model import FakeModel
from tests.waiting import wait_until

BAD = Node(Position(3, 16), "b" * 32)


class Heard(HoldBack):
    """Keeps the last that it was told."""

    def __init__(self) -> None:
        super().__init__(0, has_leader=True, clock=time.monotonic, wall_clock=time.time)
        self.ahead: Ahead | None = None

    def hear(self, ahead: Ahead) -> None:
        super().hear(ahead)
        self.ahead = ahead


class CarefulModel(FakeModel):
    def status(self) -> LoaderStatus:
        return replace(super().status(), quarantined=(Quarantined(BAD, "NaN", "values"),))


def test_what_it_serves_and_refuses_is_heard_and_when_it_is_gone_that_too() -> None:
    heard = Heard()
    with serving(CarefulModel(position=Position(3, 17))) as (host, port):
        leader = Leader(f"http://{host}:{port}/", heard)
        leader.start()
        wait_until(lambda: heard.ahead is not None, "an answer")
        assert heard.ahead == Ahead(Position(3, 17), frozenset({BAD}))
        assert heard.silent_reason == ""
    wait_until(lambda: bool(heard.silent_reason), "silence")
    assert f"{host}:{port}" in heard.silent_reason
    leader.stop()


def test_a_model_that_it_does_not_have_is_no_silence_without_a_reason() -> None:
    heard = Heard()
    with serving(FakeModel()) as (host, port):
        leader = Leader(f"http://{host}:{port}", heard, model="another")
        leader.start()
        wait_until(lambda: "404" in heard.silent_reason, lambda: f"404 in {heard.silent_reason}")
        leader.stop()
    assert heard.ahead is None


@pytest.mark.parametrize("document", [{}, [], None, {"position": 3, "quarantined": []}, {"position": "x"}])
def test_what_is_no_server_of_hotdelta_is_said_to_be_none(document: Any) -> None:
    with pytest.raises(ManifestError):
        read_ahead(document)


def test_a_server_that_serves_nothing_yet_is_at_no_position() -> None:
    assert read_ahead({"position": None, "quarantined": []}) == Ahead()


@pytest.mark.parametrize(
    "setting",
    [{"behind_server": url} for url in ("canary:8000", "http://canary:port", "http://[::1", "http://:8000")]
    + [{"behind_seconds": -1.0}],
)
def test_settings_that_cannot_be_meant_are_refused(tmp_path: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="--behind-"):
        ModelSettings(tmp_path / "export", tmp_path / "run", **setting)


@pytest.mark.parametrize("port", ["8000", "port"])
def test_no_password_is_taken_in_the_url_which_is_logged(tmp_path: Any, port: str) -> None:
    with pytest.raises(ConfigurationError, match="HOTDELTA_TOKEN") as raised:
        ModelSettings(tmp_path / "export", tmp_path / "run", behind_server=f"http://ops:hush@canary:{port}")
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("setting", [{"behind_server": "http://canary:8000"}, {"behind_seconds": 5.0}])
def test_without_a_chain_there_is_nothing_to_hold_back(tmp_path: Any, setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no chain"):
        ModelSettings(tmp_path / "export", **setting)
