"""Directories that cannot be used are refused wherever one is given, and nothing is made of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import exporter.cli
import hotdelta.cli
import hotdelta.io
from exporter import export_saved_model
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import refuse_nested, to_directory
from hotdelta.keras import DeltaCheckpoint
from hotdelta.train import CheckpointConfig, DeltaWriter, Job, TrainerProgress
from loader import LoaderSettings
from server.configuration import read_configuration
from server.model_settings import ModelSettings

pytestmark = pytest.mark.I9

GIVEN = "gs://bucket/run"


def a_model() -> keras.Model:
    return keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])


def a_variable() -> dict[str, tf.Variable]:
    return {"v": tf.Variable([1.0])}


# Where the address of a store may be given, this is none.
NO_STORE = "abfs://container@account/run"
ENTRANCES_OF_STORES: dict[str, Callable[[], Any]] = {
    "DeltaCheckpoint": lambda: DeltaCheckpoint(NO_STORE),
    "DeltaWriter": lambda: DeltaWriter(Path(NO_STORE), a_variable()),
    "CheckpointConfig": lambda: CheckpointConfig(NO_STORE),
    "export from": lambda: export_saved_model(NO_STORE, "export"),
    "save_params": lambda: hotdelta.io.save_params(a_model(), NO_STORE),
    "save_persistables": lambda: hotdelta.io.save_persistables(a_model(), Path(NO_STORE)),
    "load_persistables": lambda: hotdelta.io.load_persistables(a_model(), NO_STORE),
    "save_inference_model": lambda: hotdelta.io.save_inference_model(NO_STORE, ["x"], "dense", a_model()),
    "load_inference_model": lambda: hotdelta.io.load_inference_model(NO_STORE),
}
ENTRANCES: dict[str, Callable[[], Any]] = {
    "TrainerProgress": lambda: TrainerProgress(GIVEN, Job("job", 1, 2)),
    "export a model": lambda: export_saved_model(a_model(), GIVEN),
    "export to": lambda: export_saved_model("run", Path(GIVEN)),
    "server": lambda: read_configuration({}, {"HOTDELTA_EXPORT_DIR": "a", "HOTDELTA_STATE_DIR": GIVEN}),
    "server settings": lambda: ModelSettings(Path(GIVEN), Path("run")),
    "server state": lambda: ModelSettings(Path("export"), Path("run"), state_dir=Path(GIVEN)),
    "loader": lambda: LoaderSettings(Path("export"), Path(GIVEN)),
}


@pytest.mark.parametrize("name", ENTRANCES)
def test_an_address_is_refused_everywhere(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"'gs:/.*an address.*mounted.*mount it, and give its path"):
        ENTRANCES[name]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ENTRANCES_OF_STORES)
def test_an_address_of_no_store_is_refused_where_stores_are_taken(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"abfs:// is no address of a store.*s3://bucket/prefix"):
        ENTRANCES_OF_STORES[name]()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--checkpoint-dir", "--export-dir"])
def test_the_exporter_refuses_an_address_of_no_store_as_wrong_usage(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"--checkpoint-dir": "run", "--export-dir": "export", option: NO_STORE}
    with pytest.raises(SystemExit) as ended:
        exporter.cli.main([text for pair in given.items() for text in pair])
    assert ended.value.code == 2
    assert "abfs:// is no address of a store" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["verify", NO_STORE], "abfs:// is no address of a store"),
        (["log", NO_STORE], "abfs:// is no address of a store"),
        (["describe", GIVEN], "'gs://bucket/run', an address"),
    ],
)
def test_commands_refuse_an_address_as_wrong_usage(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code: Any = None
    with contextlib.suppress(SystemExit):
        code = hotdelta.cli.main(arguments)
    assert code in (None, 2)
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "given",
    ["s3://b/run", "hdfs://n:9000/run", "abfs://c@a/run", "file:///run", "HTTP://x/", "s3a:/b", "gs+x://"],
)
def test_whatever_has_a_scheme_is_an_address(given: str) -> None:
    with pytest.raises(ConfigurationError, match="an address"):
        to_directory(given)


@pytest.mark.parametrize(
    "given", ["run", "/data/run", "./s3://b", "2026-11-17T10:30/run", "a:b/c", "C:/run", "~"]
)
def test_whatever_has_none_is_a_path(given: str) -> None:
    assert to_directory(given) == Path(given)


@pytest.mark.parametrize("given", ["loop", "loop/run", "missing/../loop", "a" * 300])
def test_a_path_that_leads_nowhere_is_refused(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    for refused in (
        lambda: to_directory(given),
        lambda: ModelSettings(Path(given), Path("run")),
        lambda: ModelSettings(Path("export"), Path("run"), state_dir=Path(given)),
    ):
        with pytest.raises(ConfigurationError, match=r"cannot be used: .*(too long|loop|symbolic links)"):
            refused()


@pytest.mark.parametrize(
    "export_dir, problem",
    [
        ("run", "is also the checkpoint directory"),
        ("./run/../run", "is also the checkpoint directory"),
        ("link", "is also the checkpoint directory"),
        ("run/export", "is inside the checkpoint directory run"),
        ("link/deep/export", "is inside the checkpoint directory run"),
    ],
)
def test_exports_do_not_go_where_the_trainer_writes(
    export_dir: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run").mkdir()
    Path("link").symlink_to("run")
    for refused in (
        lambda: export_saved_model("run", export_dir),
        lambda: ModelSettings(Path(export_dir), Path("run")),
    ):
        with pytest.raises(ConfigurationError, match=f"{problem}. give exports a directory of their own"):
            refused()
    assert exporter.cli.main(["--checkpoint-dir", "run", "--export-dir", export_dir]) == 1
    assert problem in capsys.readouterr().err
    assert list(Path("run").iterdir()) == []


def test_a_chain_does_not_go_into_a_version_of_an_export() -> None:
    with pytest.raises(ConfigurationError, match="holds the checkpoint directory export/1/run in one of its"):
        refuse_nested(Path("export"), Path("export/1/run"))


@pytest.mark.parametrize(
    "export_dir, checkpoint_dir",
    [("model", "model/run"), ("run-export", "run"), ("run/export/served", "run"), ("a/export", "a/run")],
)
def test_directories_beside_each_other_are_in_order(export_dir: str, checkpoint_dir: str) -> None:
    refuse_nested(Path(export_dir), Path(checkpoint_dir))
