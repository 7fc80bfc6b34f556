"""A full that differs too much to be staged goes into a second model: what is served changes at once or not at all."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from hotdelta.chain import Kind, Manifest, Position, RestoreFull
from hotdelta.signatures import METADATA_FILE
from loader.checks.checks import Checks
from loader.files.commit_files import VerifiedFiles, verify_files
from loader.follow.applier import FollowLimits
from loader.follow.follower import Follower
from loader.model.live_model import LiveModel
from loader.model.served import Serving, Version
from tests.chaos.rig import put
from tests.loader.follow.test_follower import follow, serving_with, view_of
from tests.loader.step_model import (
    ROWS,
    SIGNATURE,
    StepModel,
    Trainer,
    find_commit,
    serving_file,
)
from tests.waiting import LIMIT_SECONDS

pytestmark = pytest.mark.I2

FULL = Position(2, 2)
TABLES = 2


class DisturbedModel(LiveModel):
    """Whenever something was written to it, or to a second one beside it, something else happens."""

    disturbances: ClassVar[list[Callable[[], object]]] = []

    def apply(self) -> None:
        super().apply()
        for disturb in self.disturbances:
            disturb()


def disturb_with(*disturbances: Callable[[], object]) -> None:
    DisturbedModel.disturbances[:] = disturbances


@pytest.fixture(scope="module")
def trained(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StepModel]:
    """A run directory that ends with a full after a state that the export does not hold, and what it holds."""
    root = tmp_path_factory.mktemp("trained")
    shutil.copytree(prepared_root, root, dirs_exist_ok=True)
    trainer = Trainer(root / "run")
    trainer.train([1, 2, 3])
    trainer.train_full([60])
    trainer.close()
    return root, trainer.model


@pytest.fixture
def root(trained: tuple[Path, StepModel], tmp_path: Path) -> Path:
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def full(root: Path) -> Manifest:
    return find_commit(root / "run", FULL, Kind.FULL)


@pytest.fixture
def serving(root: Path) -> Iterator[Serving]:
    with serving_with(DisturbedModel.load(root / "export" / "1")) as serving:
        yield serving
    disturb_with()


def ask(serving: Serving) -> tuple[dict[str, bytes], Version]:
    outputs, version = serving.predict(SIGNATURE, {"ids": list(range(ROWS))})
    return {name: value.tobytes() for name, value in outputs.items()}, version


def bits_of(model: StepModel) -> dict[str, bytes]:
    return {name: getattr(model, name).numpy().tobytes() for name in ("users", "items", "bias")}


def truncate(path: Path) -> None:
    os.truncate(path, 0)


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: tuple[Callable[[Path], object], ...] = (truncate, Path.unlink, replace_by_pipe)


def once(damage: Callable[[Path], object], path: Path) -> None:
    if path.is_file():
        damage(path)


def test_full_that_is_lost_half_way_leaves_the_old_state(
    root: Path, serving: Serving, full: Manifest, trained: tuple[Path, StepModel]
) -> None:
    chain, path = view_of(root), serving_file(root / "run", full)
    content, before = path.read_bytes(), ask(serving)
    for damage in DAMAGES:
        disturb_with(functools.partial(once, damage, path))
        assert not follow(chain, serving, RestoreFull(full), full_diff_bytes=0)
        assert not path.is_file() or path.stat().st_size == 0
        assert ask(serving) == before
        assert str(full.position) in chain.retry_reason or path.name in chain.retry_reason
        put(path, content)
    disturb_with()
    assert follow(chain, serving, RestoreFull(full), full_diff_bytes=0)
    outputs, version = ask(serving)
    assert (outputs, version.position) == (bits_of(trained[1]), FULL)
    assert chain.retry_reason == ""


def test_predictions_are_answered_while_a_full_is_loaded(
    root: Path, serving: Serving, full: Manifest, trained: tuple[Path, StepModel]
) -> None:
    """In another thread, at every write to the second model: nobody waits at the gate."""
    before, answers = ask(serving), list[tuple[dict[str, bytes], Version]]()

    def ask_aside() -> None:
        asking = threading.Thread(target=lambda: answers.append(ask(serving)))
        asking.start()
        asking.join(LIMIT_SECONDS)

    disturb_with(ask_aside)
    assert follow(view_of(root), serving, RestoreFull(full), full_diff_bytes=0)
    assert len(answers) >= TABLES
    assert all(answer == before for answer in answers)
    assert ask(serving)[0] == bits_of(trained[1])


def test_full_waits_for_the_export_that_is_served(root: Path, serving: Serving, full: Manifest) -> None:
    chain, before = view_of(root), ask(serving)
    path = root / "export" / "1" / METADATA_FILE
    content = path.read_text()
    metadata = {**json.loads(content), "model_name": "another"}
    del metadata["digest"]
    for other, reason in (
        ("{}", "needs a second model"),
        (json.dumps(metadata), "is not the export that is"),
    ):
        path.write_text(other)
        assert not follow(chain, serving, RestoreFull(full), full_diff_bytes=0)
        assert reason in chain.retry_reason
        assert ask(serving) == before
    path.write_text(content)
    assert follow(chain, serving, RestoreFull(full), full_diff_bytes=0)


def test_full_that_waits_for_an_export_is_not_read_again_before_it_is_there(
    root: Path, serving: Serving, full: Manifest
) -> None:
    reads = list[Position]()

    def verify(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        reads.append(manifest.position)
        return verify_files(run_dir, manifest)

    limits = FollowLimits(undo_bytes=2**20, full_diff_bytes=0, slice_bytes=64)
    follower = Follower(
        serving, view_of(root), limits, checks=Checks(verify), clock=time.monotonic, wall_clock=time.time
    )

    def is_taken() -> bool:
        return follower.follow([RestoreFull(full)], lambda served: True)

    with contextlib.closing(follower):
        for name in (METADATA_FILE, "saved_model.pb"):
            away = (root / "export" / "1" / name).rename(root / "away")
            assert [is_taken(), is_taken()] == [False, False]
            assert reads == [FULL]
            away.rename(root / "export" / "1" / name)
        assert is_taken()
        assert reads == [FULL, FULL]
