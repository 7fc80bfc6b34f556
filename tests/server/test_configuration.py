"""Several models as flags and files say it, and what wins over what."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from hotdelta.errors import ConfigurationError
from hotdelta.sanity_limits import LimitChange
from server.configuration import Configuration, read_configuration
from server.model_settings import ModelSettings
from server.setting_values import LabelPlace, ModelPlace
from server.settings import Settings

pytestmark = pytest.mark.I9

PLACES = (ModelPlace("a", Path("a/export"), Path("a/run")), ModelPlace("b", Path("b/export"), None))
FILE = """
port = 8501
max_queue = 7
undo_bytes = 1048576
state_dir = "state"
[labels]
prod = "a"
[models.a]
export_dir = "a/export"
checkpoint_dir = "a/run"
max_queue = 9
sanity = ["max_abs=50", "users:max_abs=10"]
pin = "3.17"
[models.b]
export_dir = "/data/b"
polling_only = true
poll_seconds = 1
"""


def read_text(
    directory: Path, text: str, flags: dict[str, Any] | None = None, **environment: str
) -> Configuration:
    path = directory / "models.toml"
    path.write_text(text)
    return read_configuration({**(flags or {}), "config": path}, environment)


def model_of(configuration: Configuration, name: str) -> ModelSettings:
    (found,) = (model for model in configuration.models if model.model_name == name)
    return found


def test_each_flag_model_is_one_and_other_flags_hold_for_all() -> None:
    configuration = read_configuration({"model": list(PLACES), "undo_bytes": 0}, {})

    assert [model.model_name for model in configuration.models] == ["a", "b"]
    assert [model.checkpoint_dir for model in configuration.models] == [Path("a/run"), None]
    assert {model.undo_bytes for model in configuration.models} == {0}
    assert not configuration.is_one_model


def test_models_and_labels_may_come_from_the_environment() -> None:
    variables = {"HOTDELTA_MODEL": "a=a/export,a/run; b=b/export", "HOTDELTA_LABEL": "prod=a;test=b"}

    configuration = read_configuration({}, variables)

    assert tuple(model.export_dir for model in configuration.models) == (Path("a/export"), Path("b/export"))
    assert configuration.labels == {"prod": "a", "test": "b"}


def test_a_file_says_what_holds_for_all_and_what_for_one(tmp_path: Path) -> None:
    configuration = read_text(tmp_path, FILE)
    a, b = model_of(configuration, "a"), model_of(configuration, "b")

    assert (configuration.server.port, configuration.labels) == (8501, {"prod": "a"})
    assert (a.max_queue, b.max_queue, a.undo_bytes, b.undo_bytes) == (9, 7, 2**20, 2**20)
    assert (a.export_dir, a.checkpoint_dir) == (tmp_path / "a/export", tmp_path / "a/run")
    assert (b.export_dir, b.polling_only, b.poll_seconds) == (Path("/data/b"), True, 1)
    assert a.sanity == (LimitChange("", "max_abs", 50.0), LimitChange("users", "max_abs", 10.0))
    assert str(a.pin) == "3.17"


def test_of_a_state_directory_for_all_each_model_with_a_chain_has_a_part(tmp_path: Path) -> None:
    configuration = read_text(tmp_path, FILE)

    assert model_of(configuration, "a").state_dir == tmp_path / "state" / "a"
    assert model_of(configuration, "b").state_dir is None
    assert configuration.general["state_dir"] == tmp_path / "state"


def test_one_model_wins_over_flags_they_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    environment = {"HOTDELTA_MAX_QUEUE": "4", "HOTDELTA_UNDO_BYTES": "0", "HOTDELTA_PORT": "1"}

    configuration = read_text(tmp_path, FILE, {"max_queue": 5, "port": 2}, **environment)

    assert [model.max_queue for model in configuration.models] == [9, 5]
    assert [model.undo_bytes for model in configuration.models] == [0, 0]
    assert configuration.server.port == 2


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[models.a", "models.toml cannot be read"),
        ("\xff", "models.toml cannot be read"),
        ("ports = 1", "ports is no setting. did you mean port?"),
        ("export_dir = 'a'", "export_dir is no setting"),
        ("port = '1'", "--port is '1'. write a whole number"),
        ("port = true", "--port is True. write a whole number"),
        ("max_queue = 0\n[models.a]\nexport_dir = 'a'", "[models.a]: --max-queue is 0"),
        ("port = 70000", "--port is 70000. give a number from 0 to 65535"),
        ("models = 7", "models is no table. write [models]"),
        ("[models]\na = 7", "[models.a]: it is no table. write [models.a]"),
        ("[models.a]\nexport_dir = ''", "[models.a]: --export-dir is empty"),
        ("[models.a]\nexport_dir = 'a'\nmodel_name = 'b'", "[models.a]: model_name is no setting"),
        ("[models.a]\nexport_dir = 'a'\nport = 1", "[models.a]: port is no setting"),
        ("[models.a]\nexport_dir = 'a'\npin = '3.17'", "[models.a]: --pin without --checkpoint-dir"),
        ("[models.a]\nexport_dir = 'a'\nsanity = 'max_abs=1'", 'write a list of texts: ["max_abs=50"'),
        ("[models.a]\nexport_dir = 'a'\ncheckpoint_dir = 'a'", "is also the checkpoint directory"),
        ("[models.'a/b']\nexport_dir = 'a'", "the name of a model is 'a/b'"),
        ("[models.reload]\nexport_dir = 'a'", "the name of a model is 'reload'"),
        ("[labels]\nprod = 'a'", "the label 'prod' is at 'a', which is no model here. models: none"),
        ("[labels]\nprod = 7", "[labels]: prod is 7"),
        ("[labels]\na = 'a'\n[models.a]\nexport_dir = 'a'", "the label 'a' is the name of a model, too"),
        ("default_model = 'b'\n[models.a]\nexport_dir = 'a'", "the default model is 'b', which is neither"),
        ("default_model = 7", "default_model is 7"),
    ],
)
def test_a_file_that_cannot_do_what_it_says_is_refused_with_the_place(
    tmp_path: Path, text: str, problem: str
) -> None:
    (tmp_path / "models.toml").write_bytes(text.encode("latin-1"))

    with pytest.raises(ConfigurationError) as raised:
        read_configuration({"config": tmp_path / "models.toml"}, {})

    assert problem in str(raised.value)


def test_two_models_do_not_write_into_one_directory(tmp_path: Path) -> None:
    text = "".join(
        f"[models.{name}]\nexport_dir = '{name}'\ncheckpoint_dir = '{name}-run'\nstate_dir = 'state'\n"
        for name in ("a", "b")
    )
    with pytest.raises(ConfigurationError, match="'a' and 'b' have the same state directory"):
        read_text(tmp_path, text)


@pytest.mark.parametrize(
    "flags, problem",
    [
        ({"model": PLACES, "export_dir": Path("a")}, "--export-dir beside --model"),
        ({"model": PLACES, "model_name": "a"}, "--model-name beside --model"),
        ({"model": PLACES + PLACES}, "the model 'a' is there twice"),
        (
            {"model": PLACES, "label": (LabelPlace("prod", "a"), LabelPlace("prod", "b"))},
            "--label prod is there twice",
        ),
        (
            {"model": PLACES, "label": (LabelPlace("prod", "c"),)},
            "is at 'c', which is no model here. models: a, b",
        ),
        ({"model": (ModelPlace(".a", Path("a"), None),)}, "the name of a model is '.a'"),
        ({"model": (ModelPlace("a", Path("a"), Path("a")),)}, "--model a: the export directory a is also"),
        ({"config": Path("no file")}, "--config is no file, which is not a file"),
        ({"config": Path(__file__), "model": PLACES}, "--model beside --config"),
        ({"export_dir": Path("a"), "label": (LabelPlace("prod", "a"),)}, "which is no model here"),
    ],
)
def test_flags_that_say_two_things_are_refused(flags: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        read_configuration(flags, {})

    assert problem in str(raised.value)


@pytest.mark.parametrize(
    "variable, text, problem",
    [
        ("HOTDELTA_MODEL", "a", "write NAME=EXPORT_DIR,RUN_DIR, or NAME=EXPORT_DIR"),
        ("HOTDELTA_MODEL", "a=b,c,d", "write NAME=EXPORT_DIR,RUN_DIR"),
        ("HOTDELTA_MODEL", "a=ftp://bucket/run", "no address of a store"),
        ("HOTDELTA_MODEL", "a=s3://bucket/run?secret_access_key=x", "credentials in it"),
        ("HOTDELTA_LABEL", "prod", "write LABEL=MODEL"),
    ],
)
def test_what_is_no_model_and_no_label_is_refused(variable: str, text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=variable) as raised:
        read_configuration({}, {variable: text})

    assert problem in str(raised.value)


def test_one_model_with_a_name_may_have_a_label() -> None:
    flags = {
        "export_dir": Path("a"),
        "model_name": "a",
        "label": (LabelPlace("prod", "a"),),
        "default_model": "prod",
    }

    configuration = read_configuration(flags, {})

    assert (configuration.is_one_model, configuration.labels) == (True, {"prod": "a"})


def test_every_setting_of_a_model_may_stand_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32)
    said = {
        "export_dir": "'export'",
        "checkpoint_dir": "'s3://bucket/run'",
        "orders_key_file": "'key'",
        "polling_only": "true",
        "sanity": "[]",
        "pin": "'1.1'",
        "state_dir": "'state'",
        "tensorboard_dir": "'logs'",
        "signing_key_file": "'key'",
        "probe": "'probe'",
        "behind_server": "'http://canary:8000'",
        "mirror_dir": "'mirror'",
        "mirror_bytes": "1048576",
    }
    (tmp_path / "probe").write_text('{"max_change": 1}\n{"instance": {"x": 1}}')
    known = [setting.name for setting in fields(ModelSettings) if setting.name != "model_name"]
    text = "[models.a]\n" + "".join(f"{name} = {said.get(name, '1')}\n" for name in known)

    (model,) = read_text(tmp_path, text).models

    assert (model.signing_key_file, model.probe) == (tmp_path / "key", tmp_path / "probe")
    assert all(getattr(model, name) == 1 for name in known if name not in said)


def test_the_page_lists_every_key_of_the_file_and_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "several-models.md").read_text()
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    tables = page[page.index("| key | of the server |") : page.index("## Adding and removing")]
    listed = {key for row in rows if row in tables for key in re.findall(r"`([a-z_]+)`", row.split("|")[1])}

    settings = {setting.name for setting in (*fields(Settings), *fields(ModelSettings))}
    assert listed == (settings - {"model_name"}) | {"default_model"}


def test_every_setting_of_the_server_may_stand_in_the_file(tmp_path: Path) -> None:
    for name in ("cert", "tokens"):
        (tmp_path / name).touch()
    said: dict[str, object] = {
        "host": "::1",
        "port": 8501,
        "grpc_port": 8500,
        "log_format": "json",
        "fleet": ("http://replica-1:8000",),
        "loadable_dir": "loadable",
        "max_body_bytes": 2**20,
        "max_buffered_bytes": 2**21,
        **dict.fromkeys(("tls_cert", "tls_key", "tls_client_ca"), "cert"),
        **dict.fromkeys(("predict_token_file", "admin_token_file"), "tokens"),
    }
    values = {setting.name: said.get(setting.name, 7) for setting in fields(Settings)}
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in values.items())

    server = read_text(tmp_path, text).server

    for name, value in values.items():
        found = getattr(server, name)
        assert found == (tmp_path / str(value) if isinstance(found, Path) else value)
