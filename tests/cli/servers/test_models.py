"""A server with several models: all are listed, and each is asked and ordered by its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Position
from loader.status import LoaderStatus, Quarantined, State
from server.app import create_app
from server.configuration import Configuration, read_configuration
from server.model_settings import ModelSettings
from server.settings import Settings
from tests.cli.conftest import Run
from tests.server.connections import serving_app
from tests.server.fake_model import FakeModel

TOKEN = "operators-token-0123456789"  # noqa: S105 - opens nothing


@pytest.fixture
def models() -> dict[str, FakeModel]:
    return {"ranker": FakeModel(), "towers": FakeModel(position=Position(4, 2))}


@pytest.fixture
def url(tmp_path: Path, models: dict[str, FakeModel], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "tokens").write_text(f"ops:{TOKEN}\n")
    monkeypatch.setenv("HOTDELTA_ADMIN_TOKEN", TOKEN)
    settings = tuple(ModelSettings(Path("export"), Path("run"), model_name=name) for name in models)
    server = Settings(admin_token_file=tmp_path / "tokens")
    configuration = Configuration(server, settings, labels={"prod": "ranker"}, is_one_model=False)
    app = create_app(configuration, lambda made: models[str(made.model_name)])
    with serving_app(app) as (host, port):
        yield f"http://{host}:{port}"


def test_all_models_are_listed_and_each_is_told_of_by_name(url: str, run: Run) -> None:
    listed = run("log", url)
    assert listed.code == 0
    assert [line.split()[:2] for line in listed.lines] == [
        ["model", "position"],
        ["ranker", "1.1"],
        ["towers", "4.2"],
    ]
    assert [model["name"] for model in run("log", url, "--json").document["models"]] == ["ranker", "towers"]
    assert run("log", url, "--model", "towers", "--json").document["position"] == "4.2"


def test_an_order_goes_to_the_model_that_it_names(url: str, run: Run, models: dict[str, FakeModel]) -> None:
    assert run("pin", url, "--model", "towers").out == f"pin: {url} serves 4.2\n"
    assert (models["towers"].orders, models["ranker"].orders) == ([("pin", None)], [])
    nobody = run("pin", url)
    assert nobody.code == 1
    assert "ranker" in nobody.err


def test_every_model_is_examined(url: str, run: Run, models: dict[str, FakeModel]) -> None:
    models["towers"].position = None
    done = run("doctor", url, "--json")
    verdicts = {check["name"]: check["verdict"] for check in done.document["checks"]}
    assert done.code == 1
    assert (verdicts["ranker: serving"], verdicts["towers: serving"]) == ("ok", "fail")
    assert run("doctor", url, "--model", "ranker").code == 0


def test_a_model_that_is_not_there_is_named_with_those_that_are(url: str, run: Run) -> None:
    for command in ("log", "tail", "doctor"):
        done = run(command, url, "--model", "a/b")
        assert done.code == 1
        assert "a/b" in done.out + done.err


def test_a_label_is_moved_and_told_of(url: str, run: Run) -> None:
    assert "label: prod is at towers now, and was at ranker" in run("label", url, "prod", "towers").out
    assert run("log", url, "--model", "prod", "--json").document["position"] == "4.2"
    assert [model["labels"] for model in run("log", url, "--json").document["models"]] == [[], ["prod"]]
    refused = run("label", url, "prod", "nobody")
    assert refused.code == 1
    assert "nobody" in refused.err


def test_a_server_without_a_file_of_models_cannot_read_it_again(url: str, run: Run) -> None:
    refused = run("reload", url)
    assert refused.code == 1
    assert f"{url} refuses" in refused.err


def test_what_a_reload_has_changed_is_told(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens").write_text(f"ops:{TOKEN}\n")
    monkeypatch.setenv("HOTDELTA_ADMIN_TOKEN", TOKEN)
    file = tmp_path / "models.toml"

    def write(*names: str) -> None:
        tables = [
            f'[models.{name}]\nexport_dir = "{name}/export"\ncheckpoint_dir = "{name}/run"\n'
            for name in names
        ]
        file.write_text("\n".join(['admin_token_file = "tokens"', *tables]))

    def read() -> Configuration:
        return read_configuration({"config": file}, {})

    write("ranker", "towers")
    app = create_app(read(), lambda _: FakeModel(), reread=read)
    with serving_app(app) as (host, port):
        write("towers", "newest")
        done = run("reload", f"http://{host}:{port}")
    assert done.out == "reload: models added: newest; removed: ranker\n"


class Pinned(FakeModel):
    """One that is held back, with a state that was refused."""

    def status(self) -> LoaderStatus:
        told = super().status()
        assert told.node is not None
        reason = "NaN; if it is meant to be so: hotdelta release URL 4.3"
        quarantined = (Quarantined(told.node, reason, "values"),)
        return replace(
            told, state=State.PINNED, reason=reason, pinned=told.node.position, quarantined=quarantined
        )


@pytest.mark.parametrize("models", [{"ranker": FakeModel(), "towers": Pinned(position=Position(4, 2))}])
def test_advice_for_one_of_several_names_it(models: dict[str, FakeModel], url: str, run: Run) -> None:
    checks = {check["name"]: check for check in run("doctor", url, "--json").document["checks"]}

    assert checks["towers: updates"]["advice"] == "hotdelta resume URL --model towers"
    assert checks["towers: quarantine"]["advice"].endswith("hotdelta release URL POSITION --model towers")
    assert checks["towers: quarantine"]["found"].endswith("hotdelta release URL 4.3 --model towers")
    told = run("log", url, "--model", "towers", "--json").document
    assert told["reason"].endswith("hotdelta release URL 4.3 --model towers")
    assert "--model" not in str(run("log", url, "--model", "ranker", "--json").document)
