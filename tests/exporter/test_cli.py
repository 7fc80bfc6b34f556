"""The command, called as a function where that is enough and as a process where it is killed."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from exporter import export_saved_model
from exporter.arguments import in_flags
from exporter.cli import _print_path, main
from hotdelta.chain import Disk, Node
from hotdelta.errors import ConfigurationError
from hotdelta.export_metadata import read_metadata
from hotdelta.remote.stores.opening import open_store
from hotdelta.remote.trees import fetch_tree, find_tree, list_trees
from hotdelta.train import DeltaWriter
from tests.exporter.bundles import TwoTables
from tests.waiting import LIMIT_SECONDS

LOG_LEVEL = "TF_CPP_MIN_LOG_LEVEL"


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the command sets up for the whole process is not left to the tests that come after."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(LOG_LEVEL, os.environ.get(LOG_LEVEL, "3"))
    before = {
        logger: (logger.level, logger.propagate, [*logger.handlers])
        for logger in map(logging.getLogger, ("exporter", "hotdelta", "tensorflow", "absl"))
    }
    yield
    for logger, (level, propagate, handlers) in before.items():
        logger.setLevel(level)
        logger.propagate = propagate
        for handler in set(logger.handlers).difference(handlers):
            logger.removeHandler(handler)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a custom loop with a full and one delta."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    train(directory)
    return directory


def train(directory: Path | str, **options: Any) -> None:
    module = TwoTables()
    with DeltaWriter(
        directory,
        module,
        tables=["users", "items"],
        tracking={"users": "changed", "items": "changed"},
        signatures={"serving_default": module.score},
        **options,
    ) as writer:
        module.users.scatter_nd_update([[3]], [[1.0, 2.0, 3.0, 4.0]])
        module.bias.assign(7.0)
        writer.step()
        writer.save()


def arguments(run_dir: Path, export_dir: Path, *more: str) -> list[str]:
    return ["--checkpoint-dir", str(run_dir), "--export-dir", str(export_dir), *more]


def test_the_path_is_printed_and_progress_is_not(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(arguments(run_dir, tmp_path, "--save-incr-model", "--model-name", "clicks"))
    printed = capsys.readouterr()
    assert (code, printed.out) == (0, f"{tmp_path / '1'}\n")
    assert "exporting" in printed.err
    assert "verifying" in printed.err
    loaded = tf.saved_model.load(printed.out.strip())
    score = loaded.signatures["serving_default"](
        user=tf.constant([3], tf.int64), item=tf.constant([0], tf.int64)
    )
    assert score["score"].numpy() == [7.0]
    assert "restore_incremental" in loaded.signatures
    assert '"model_name": "clicks"' in (tmp_path / "1" / "assets.extra" / "hotdelta.json").read_text()


def test_a_path_that_cannot_be_printed_is_said_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert _print_path(tmp_path) == 1
        assert sys.stdout is None
        assert _print_path(tmp_path) == 1
        with pytest.raises(OSError, match="No space"):
            full.close()

    assert capfd.readouterr().err.startswith(f"exporter: exported {tmp_path}, but cannot write so")


def test_position_version_and_signatures_are_options(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--position", "1.1", "--version", "12", "--signature", "serving_default", "--import", "json"]
    assert main(arguments(run_dir, tmp_path, *more)) == 0
    assert capsys.readouterr().out == f"{tmp_path / '12'}\n"
    loaded = tf.saved_model.load(str(tmp_path / "12"))
    assert loaded.signatures["identity"]()["identity"].numpy()[:2].tolist() == [1, 1]


def test_hints_name_flags_where_python_is_told_arguments(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--checkpoint-dir", str(run_dir), "--export-dir", str(tmp_path), "--position", "9.9"]
    assert main(asked) == 1
    assert "leave --position out for the newest" in capsys.readouterr().err
    with pytest.raises(ConfigurationError, match="leave `position` out for the newest"):
        export_saved_model(run_dir, tmp_path, position="9.9")
    for said, flags in (
        ("without `save_incr_model`, or", "without --save-incr-model, or"),
        ("with `save_incr_model=True`", "with --save-incr-model"),
        ("allow it: `allow_whole_table_reads=['my/table']`", "allow it: --allow-whole-table-read my/table"),
    ):
        assert in_flags(said) == flags


def test_an_empty_directory_fails_with_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    assert main(arguments(tmp_path / "run", tmp_path / "export", "--wait", "0.1")) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "waiting for a checkpoint" in printed.err
    assert "holds no checkpoint yet" in printed.err
    assert "start the trainer" in printed.err


def test_a_module_that_cannot_be_imported_is_named(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(run_dir, tmp_path, "--import", "no_such_module")) == 1
    assert "no_such_module" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ["--position", "seven"],
        ["--version", "-1"],
        ["--version", "0"],
        ["--version", str(10**18)],
        ["--wait", "nan"],
        ["--import", ""],
        ["--import", ".relative"],
        ["--checkpoint-dir", ""],
        ["--export-dir", ""],
        ["--nonsense"],
        ["--save-incr"],
    ],
)
def test_wrong_usage_exits_with_two(
    run_dir: Path, tmp_path: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments(run_dir, tmp_path, *more))
    assert stopped.value.code == 2
    assert "usage: exporter" in capsys.readouterr().err


def test_help_teaches_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    assert "exporter --checkpoint-dir run --export-dir export --save-incr-model" in capsys.readouterr().out


def test_it_waits_for_the_first_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = threading.Timer(0.3, train, [tmp_path / "run"])
    trainer.start()
    try:
        assert main(arguments(tmp_path / "run", tmp_path / "export", "--wait", "60")) == 0
    finally:
        trainer.join(LIMIT_SECONDS)
    assert capsys.readouterr().out == f"{tmp_path / 'export' / '1'}\n"


@contextmanager
def exporter(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The command as a process, which hears Ctrl-C also when these tests were started in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "exporter.cli", *arguments]
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as process:
        signal.signal(signal.SIGINT, before)
        yield process


STOPPED_IN_A_DESTRUCTOR = """
import os, signal
import tensorflow as tf

class Ending:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})

def save_and_stop(*arguments, **options):
    save(*arguments, **options)
    assert os.path.exists(os.path.join(arguments[1], "saved_model.pb"))
    Ending()

save, tf.saved_model.save = tf.saved_model.save, save_and_stop
"""


def stopped_in_the_middle(
    run_dir: Path, export_dir: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> str:
    """What an exporter says that is sent this signal when the SavedModel is written and not yet published.

    In a destructor, which swallows what the handler of a signal raises.
    """
    export_dir.mkdir()
    monkeypatch.chdir(export_dir.parent)
    Path("stopped_in_a_destructor.py").write_text(STOPPED_IN_A_DESTRUCTOR.format(name=number.name))
    stopping = ["--save-incr-model", "--import", "stopped_in_a_destructor"]
    with exporter(*arguments(run_dir, export_dir, *stopping)) as process:
        said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), said
    return said


def test_killed_in_the_middle_it_leaves_nothing_to_load_and_the_next_one_cleans_up(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_dir = tmp_path / "export"
    stopped_in_the_middle(run_dir, export_dir, monkeypatch, signal.SIGKILL)
    assert sorted(path.name for path in export_dir.iterdir()) == [".exporter.lock", ".tmp-export-1"]
    assert main(arguments(run_dir, export_dir)) == 0
    assert sorted(path.name for path in export_dir.iterdir()) == [".exporter.lock", "1"]


def test_terminated_in_the_middle_it_says_so_and_leaves_nothing_behind(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    export_dir = tmp_path / "export"
    said = stopped_in_the_middle(run_dir, export_dir, monkeypatch, signal.SIGTERM)
    assert said.endswith("exporter: stopped; a version that is not complete is not published\n")
    assert "Traceback" not in said
    assert [path.name for path in export_dir.iterdir()] == [".exporter.lock"]


def test_terminated_it_stops_also_when_nobody_can_be_told() -> None:
    program = "import os; from exporter.cli import _stop; os.close(2); _stop(15, None)"
    stopped = subprocess.run([sys.executable, "-c", program], timeout=LIMIT_SECONDS, check=False)
    assert stopped.returncode == 128 + signal.SIGTERM


def test_interrupted_while_it_waits_it_says_so(tmp_path: Path) -> None:
    with exporter(*arguments(tmp_path / "run", tmp_path / "export", "--wait", "60")) as process:
        assert process.stderr is not None
        assert "waiting for a checkpoint" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=LIMIT_SECONDS)[1]
    assert (process.returncode, said.count("\n")) == (128 + signal.SIGINT, 1)
    assert "exporter: stopped" in said


def test_an_export_goes_from_a_store_into_a_store(
    s3_address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = s3_address.replace("/run?", "/exports?")
    arguments = ["--checkpoint-dir", s3_address, "--export-dir", exports, "--save-incr-model"]
    assert main(arguments) == 1
    assert "holds no checkpoint" in capsys.readouterr().err
    train(s3_address, spool_dir=tmp_path / "spool")
    assert main([*arguments, "--wait", "60"]) == 0
    assert capsys.readouterr().out.strip() == exports.replace("/exports?", "/exports/1?")
    assert main(arguments) == 0
    assert main([*arguments, "--version", "2"]) == 1
    assert "has a version 2 already" in capsys.readouterr().err
    assert main([*arguments, "--position", "1.1", "--version", "7"]) == 0
    store, local = open_store(exports), export_saved_model(tmp_path / "spool", tmp_path, save_incr_model=True)
    assert list_trees(store) == ["1", "2", "7"]
    tree = find_tree(store, "2")
    assert tree is not None
    with ThreadPoolExecutor(2) as pool:
        fetch_tree(store, tree, tmp_path / "fetched", pool=pool, disk=Disk())
    assert node_of(tmp_path / "fetched") == node_of(local)
    assert main(["--checkpoint-dir", s3_address, "--export-dir", s3_address]) == 1
    assert "lie in one another" in capsys.readouterr().err


def node_of(export: Path) -> Node | None:
    return read_metadata(export).node
