"""Resume: the newest position whose files are all in order, bit for bit; what is damaged is named and left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import Kind, Manifest, Tracking
from hotdelta.chain.format.position import Position
from hotdelta.chain.history.plan import ApplyDelta, RestoreFull, plan
from hotdelta.chain.history.scan import Scanner
from hotdelta.chain.history.state import find_state
from hotdelta.chain.history.verification import directory_of
from hotdelta.errors import ChainError, ModelMismatchError
from hotdelta.train.loop import DeltaWriter
from tests.train.conftest import StartTraining
from tests.train.small_training import SmallTraining

pytestmark = pytest.mark.I6

BOTH = pytest.mark.parametrize("mode", list(Tracking))


def history(training: SmallTraining) -> None:
    """1.1 full, 1.2 and 1.3 deltas, 1.4 full with its delta, 1.5 and 1.6 deltas."""
    for number in range(2, 7):
        training.train(steps=2)
        training.save_full() if number == 4 else training.save()
    training.close()
    assert list(training.saved) == [Position(1, seq) for seq in range(1, 7)]


def data_file(
    training: SmallTraining, kind: Kind, position: Position, role: str = names.ROLE_SERVING
) -> Path:
    (found,) = [manifest for manifest in training.manifests(kind) if manifest.position == position]
    (name,) = [file.name for file in found.files if file.role == role]
    return directory_of(training.run_dir, kind) / name


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.I1
@BOTH
def test_resume_is_exact_and_goes_on_at_the_tip(start_training: StartTraining, mode: Tracking) -> None:
    first = start_training(mode=mode)
    history(first)
    second = start_training(mode=mode, seed=9)
    assert second.resumed is not None
    assert (second.resumed.position, second.resumed.step) == (Position(1, 6), 10)
    assert second.resumed.problems == ()
    assert second.values() == first.values()
    second.train()
    second.save()
    before, after = second.manifests(Kind.DELTA)[-2:]
    assert after.parent == before.node
    second.check()


@BOTH
def test_resume_without_wanting_to_starts_a_new_chain(start_training: StartTraining, mode: Tracking) -> None:
    history(start_training(mode=mode))
    second = start_training(mode=mode, seed=9, is_resuming=False)
    assert second.resumed is None
    assert second.manifests(Kind.FULL)[-1].position == Position(2, 1)
    assert second.manifests(Kind.FULL)[-1].parent is None


@BOTH
@pytest.mark.parametrize("role", [names.ROLE_SERVING, names.ROLE_TRAINING, names.ROLE_INDEX])
@pytest.mark.parametrize("damage", [flip_a_byte, Path.unlink])
def test_a_damaged_delta_is_named_and_training_forks_before_it(
    start_training: StartTraining, mode: Tracking, damage: Any, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    first = start_training(mode=mode)
    history(first)
    damaged = data_file(first, Kind.DELTA, Position(1, 6), role)
    damage(damaged)
    second = start_training(mode=mode, seed=9)
    assert second.resumed is not None
    assert second.resumed.position == Position(1, 5)
    assert damaged.name in " ".join(second.resumed.problems)
    assert damaged.name in caplog.text
    assert second.values() == first.saved[Position(1, 5)]
    second.train()
    second.save()
    fork = second.manifests(Kind.DELTA)[-1]
    assert (fork.position, fork.parent and fork.parent.position) == (Position(2, 1), Position(1, 5))
    second.check()


def test_a_damaged_full_is_stepped_over_through_the_links(start_training: StartTraining) -> None:
    first = start_training()
    history(first)
    damaged = data_file(first, Kind.FULL, Position(1, 4))
    flip_a_byte(damaged)
    second = start_training(seed=9)
    assert second.resumed is not None
    assert second.resumed.position == Position(1, 6)
    assert damaged.name in second.resumed.problems[0]
    assert second.values() == first.values()


def test_a_damaged_link_before_a_full_does_not_matter(start_training: StartTraining) -> None:
    first = start_training()
    history(first)
    flip_a_byte(data_file(first, Kind.DELTA, Position(1, 2)))
    second = start_training(seed=9)
    assert second.resumed is not None
    assert (second.resumed.position, second.resumed.problems) == (Position(1, 6), ())


def test_a_deleted_manifest_falls_back_to_before_the_hole(start_training: StartTraining) -> None:
    first = start_training()
    history(first)
    gone = first.manifests(Kind.DELTA)[-2]
    (directory_of(first.run_dir, Kind.DELTA) / names.manifest_name(gone.prefix)).unlink()
    second = start_training(seed=9)
    assert second.resumed is not None
    assert second.resumed.position == Position(1, 4)
    assert "1.5" in " ".join(second.resumed.problems)


def test_a_server_follows_the_fork_of_a_trainer_that_fell_back(start_training: StartTraining) -> None:
    first = start_training()
    history(first)
    before = {manifest.position: manifest for manifest in first.manifests(Kind.DELTA)}
    flip_a_byte(data_file(first, Kind.DELTA, Position(1, 6)))
    second = start_training(seed=9)
    second.train()
    second.save()
    found = Scanner(first.run_dir).scan()
    fresh, follower = plan(None, found.manifests), plan(before[Position(1, 5)].node, found.manifests)
    assert [type(step) for step in fresh.steps] == [RestoreFull, ApplyDelta, ApplyDelta]
    assert fresh.target == follower.target == second.manifests(Kind.DELTA)[-1].node
    assert _positions(follower.steps) == [Position(2, 1)]
    astray = before[Position(1, 6)].node
    undone = plan(astray, found.manifests, undoable=[before[Position(1, 5)].node])
    assert undone.target == fresh.target


def _positions(steps: Any) -> list[Position]:
    return [step.manifest.position for step in steps]


def test_nothing_valid_is_an_error_and_never_a_fresh_start(start_training: StartTraining) -> None:
    first = start_training()
    history(first)
    damaged = [data_file(first, Kind.FULL, Position(1, seq)) for seq in (1, 4)]
    for path in damaged:
        flip_a_byte(path)
    with pytest.raises(ChainError, match="no full checkpoint") as caught:
        start_training(seed=9)
    assert all(path.name in str(caught.value) for path in damaged)
    start_training(seed=9, is_resuming=False)


def test_a_directory_of_deltas_that_cannot_be_listed_is_no_reason_to_go_on_from_a_full(
    start_training: StartTraining,
) -> None:
    """Its commits are newer, and training on from the full would leave them behind."""
    first = start_training()
    history(first)
    deltas = directory_of(first.run_dir, Kind.DELTA)
    away = deltas.rename(first.run_dir / "away")
    deltas.write_bytes(b"not a directory")
    with pytest.raises(ChainError, match="cannot be listed"):
        find_state(first.run_dir)
    deltas.unlink()
    away.rename(deltas)
    assert start_training(seed=9).resumed is not None


def listing(directory: Path) -> dict[str, tuple[int, int]]:
    """Everything but the lock, which says who holds the directory."""
    return {
        str(path.relative_to(directory)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and path.name != names.LOCK_FILE
    }


@pytest.mark.parametrize(
    "shapes, problem",
    [
        ({"table": (9, 3), "other": ()}, "table: shape 9x3 in the model, 50x3 in the checkpoint"),
        ({"table": (50, 3), "other": (2,)}, "other: shape 2 in the model, scalar in the checkpoint"),
        (
            {"table": (50, 3), "other": (), "new": (4,)},
            "new: the model has it with shape 4, the checkpoint does not",
        ),
        ({"table": (50, 3)}, "other: the checkpoint has it, the model does not"),
    ],
)
def test_a_model_that_does_not_fit_is_told_and_nothing_is_changed(
    start_training: StartTraining, tmp_path: Path, shapes: dict[str, Any], problem: str
) -> None:
    first = start_training()
    history(first)
    before = listing(tmp_path)
    variables = {key: tf.Variable(tf.ones(shape)) for key, shape in shapes.items()}
    slots = {"table": {"momentum": tf.Variable(tf.ones(shapes["table"]))}}
    with pytest.raises(ModelMismatchError) as caught:
        DeltaWriter(tmp_path, variables, tables=["table"], slots=slots)
    assert problem in "\n".join(caught.value.problems)
    assert listing(tmp_path) == before
    assert all(np.all(variable.numpy() == 1) for variable in variables.values())
    start_training(seed=9)


def test_a_dtype_that_does_not_fit_is_told(start_training: StartTraining, tmp_path: Path) -> None:
    history(start_training())
    variables = {"table": tf.Variable(tf.ones((50, 3), tf.float16)), "other": tf.Variable(0.0)}
    slots = {"table": {"momentum": tf.Variable(tf.ones((50, 3)))}}
    with pytest.raises(
        ModelMismatchError, match="table: dtype float16 in the model, float32 in the checkpoint"
    ):
        DeltaWriter(tmp_path, variables, tables=["table"], slots=slots)


def test_registered_state_epoch_and_step_come_back(start_training: StartTraining, tmp_path: Path) -> None:
    variables = {"weight": tf.Variable(1.0)}
    with DeltaWriter(tmp_path, variables, None, None, save_incremental_steps=1) as writer:
        writer.register_state("reader", lambda: {"file": "a", "offset": 7})
        writer.register_state("cursor", lambda: b"\x00\xff")
        writer.end_epoch(0)
        for _ in range(3):
            variables["weight"].assign_add(1.0)
            writer.step()
    with DeltaWriter(tmp_path, {"weight": tf.Variable(0.0)}) as writer:
        resumed = writer.resumed
    assert resumed is not None
    assert (resumed.step, resumed.epoch, resumed.step_in_epoch) == (3, 1, 3)
    assert resumed.state == {"reader": {"file": "a", "offset": 7}, "cursor": b"\x00\xff"}


def test_a_foreign_manifest_is_no_reason_to_start_afresh(start_training: StartTraining) -> None:
    first = start_training()
    manifest: Manifest = first.manifests(Kind.FULL)[0]
    first.close()
    path = first.run_dir / names.manifest_name(manifest.prefix)
    path.write_text(path.read_text().replace('"format_version"', '"other_version"'))
    with pytest.raises(ChainError, match="no full checkpoint"):
        start_training()
