"""Every way from disk into a model: what its manifest does not vouch for, or nobody signed, never gets in.

Those of TensorFlow 1 are walked by tests/compat/graph_mode/checks_of_ways_in.py, those of servers by
tests/loader/test_signing.py, which also exports from a directory with a checkpoint of stock TensorFlow.
"""

from __future__ import annotations

import ast
import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotdelta.io as hio
from exporter import export_saved_model
from exporter.cli import main as run_exporter
from hotdelta.cli import main as run_hotdelta
from hotdelta.errors import HotdeltaError
from tests.bad_states import BAD_VALUE, forge, fulls, newest_delta, plant, spoil
from tests.docs.pages import ROOT
from tests.keras.small_models import by_hand, fit, small_model
from tests.loader.step_model import ROWS, StepModel, Trainer
from tests.signing_keys import holding
from tests.ways_in import OTHER_WAYS, READERS, READING

pytestmark = pytest.mark.I4

NEWEST = "1.5"
# The rows that each step writes.
LESSONS = ([1, 2], [3], [4], [5])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Path:
    """Signed chains: of a StepModel in `run`, whose rows have the step as value; of Keras in `keras`."""
    root = tmp_path_factory.mktemp("ways")
    with holding(key_file):
        trainer = Trainer(root / "run")
        trainer.train(LESSONS[0])
        trainer.train(LESSONS[1])
        trainer.train_full(LESSONS[2])
        assert str(trainer.train(LESSONS[3])) == NEWEST
        trainer.close()
        with by_hand(root / "keras") as callback:
            fit(small_model(), 2, callback)
            callback.save()
    return root


@pytest.fixture
def root(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "root"))


def expected(step: int) -> np.ndarray:
    """The table and the bias of the StepModel after so many steps."""
    users = np.zeros([ROWS, 4], np.float32)
    for number, ids in enumerate(LESSONS[:step], 1):
        users[ids] = number
    return np.append(users, np.full(3, step, np.float32))


def found_in(model: StepModel) -> np.ndarray:
    return np.append(model.users.numpy(), model.bias.numpy())


def resume_callback(root: Path) -> np.ndarray:
    model = small_model(seed=3)
    with by_hand(root / "keras") as callback:
        callback.resume(model)
    return np.concatenate([np.ravel(weight) for weight in model.get_weights()])


def resume_writer(root: Path) -> np.ndarray:
    trainer = Trainer(root / "run")
    trainer.close()
    return found_in(trainer.model)


def loaded(load: Callable[..., Any]) -> Callable[[Path], np.ndarray]:
    def enter(root: Path) -> np.ndarray:
        model = StepModel()
        load(model, root / "run")
        return found_in(model)

    return enter


def export_newest(root: Path) -> None:
    with pytest.raises(HotdeltaError):
        export_saved_model(root / "run", root / "another", position=NEWEST)
    assert not (root / "another").exists()


def export_by_command(root: Path) -> None:
    arguments = ["--checkpoint-dir", str(root / "run"), "--export-dir", str(root / "another")]
    assert run_exporter([*arguments, "--position", NEWEST]) == 1
    assert not (root / "another").exists()


def verify_by_command(root: Path) -> None:
    assert run_hotdelta(["verify", str(root / "run")]) == 1


WAYS: dict[str, Callable[[Path], np.ndarray | None]] = {
    "DeltaCheckpoint.resume": resume_callback,
    "DeltaWriter": resume_writer,
    "io.load_persistables": loaded(hio.load_persistables),
    "io.load_params": loaded(hio.load_params),
    "io.load_vars of a position": loaded(lambda *given: hio.load_vars(*given, position=NEWEST)),
    "export_saved_model": export_newest,
    "the command exporter": export_by_command,
    "hotdelta verify": verify_by_command,
}


def enter(way: str, root: Path) -> None:
    """It refuses, or has a state that was trained."""
    with contextlib.suppress(HotdeltaError):
        values = WAYS[way](root)
        if way == "DeltaCheckpoint.resume":
            assert values is not None
            assert np.max(values) != BAD_VALUE
        elif values is not None:
            assert any(np.array_equal(values, expected(step)) for step in range(len(LESSONS) + 1))


HARMS = {
    "fulls with other bytes than their manifests say": lambda run_dir: fulls(run_dir, spoil),
    "a delta with other bytes than its manifest says": lambda run_dir: newest_delta(run_dir, spoil),
}
HARMS_FOR_A_KEY = {
    "fulls that nobody signed": lambda run_dir: fulls(run_dir, forge),
    "a delta that nobody signed": lambda run_dir: newest_delta(run_dir, forge),
}
# They never look at the file `checkpoint`: what it names is nothing to them, and the chain beside it is in order.
ABOVE_STATE_FILES = ("DeltaCheckpoint.resume", "DeltaWriter", "io.load_persistables")


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("way", WAYS)
def test_what_its_manifest_does_not_say_never_gets_in(way: str, harm: str, root: Path) -> None:
    for run in ("run", "keras"):
        HARMS[harm](root / run)

    enter(way, root)


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("harm", HARMS_FOR_A_KEY)
@pytest.mark.parametrize("way", WAYS)
def test_with_a_key_what_nobody_signed_never_gets_in(way: str, harm: str, root: Path) -> None:
    for run in ("run", "keras"):
        HARMS_FOR_A_KEY[harm](root / run)

    enter(way, root)


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("way", ABOVE_STATE_FILES)
def test_with_a_key_a_checkpoint_of_stock_tensorflow_never_gets_in(way: str, root: Path) -> None:
    for run in ("run", "keras"):
        plant(root / run)

    values = WAYS[way](root)

    assert values is not None
    assert np.max(values) != BAD_VALUE
    assert way == "DeltaCheckpoint.resume" or np.array_equal(values, expected(len(LESSONS)))


@pytest.mark.usefixtures("has_key")
@pytest.mark.parametrize("command", ["chain", "describe"])
def test_with_a_key_commands_say_what_nobody_signed(
    command: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_hotdelta([command, str(root / "run")]) == 0
    newest_delta(root / "run", forge)

    assert run_hotdelta([command, str(root / "run")]) == 1
    captured = capsys.readouterr()
    assert "it is not signed, and a key is configured" in captured.out + captured.err


def test_every_way_of_the_list_is_walked() -> None:
    assert {*WAYS, "a server"} == set(OTHER_WAYS)


def test_whoever_reads_a_checkpoint_is_on_the_list() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ("hotdelta", "exporter", "loader", "server")
        for path in (ROOT / room).rglob("*.py")
        if READING & set(called_in(path.read_text()))
    }

    assert found == set(READERS)


def called_in(source: str) -> Iterator[str]:
    if not any(name in source for name in READING):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            function = node.func
            yield function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
