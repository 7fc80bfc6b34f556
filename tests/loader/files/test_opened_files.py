"""What is put in the place of a file of a full is refused with a reason; nobody waits for it, also not TensorFlow."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from hotdelta.chain import Kind, Position
from hotdelta.errors import DamagedError
from loader.files.commit_files import VerifiedFiles, verify_files
from loader.files.opened_files import opened_prefix
from loader.follow.catch_up import restore_verified
from loader.model.live_model import LiveModel
from tests.chaos.rig import put, remove
from tests.loader.step_model import ROWS, SIGNATURE, commit_paths, export, find_commit

pytestmark = pytest.mark.I4


@pytest.fixture(scope="module")
def full_only(prepared_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    exports = tmp_path_factory.mktemp("full-only")
    return exports / str(export(prepared_root / "run", exports, save_incr_model=False))


@pytest.fixture(params=["full only", "incremental"])
def model(request: pytest.FixtureRequest, prepared_root: Path, full_only: Path) -> Iterator[LiveModel]:
    model = LiveModel.load(full_only if request.param == "full only" else prepared_root / "export" / "1")
    yield model
    model.close()


@pytest.fixture
def files(root: Path) -> VerifiedFiles:
    return verify_files(root / "run", find_commit(root / "run", Position(1, 1), Kind.FULL))


def users(model: LiveModel) -> bytes:
    return bytes(model.predict(SIGNATURE, {"ids": list(range(ROWS))})["users"].tobytes())


def serving_paths(files: VerifiedFiles) -> list[Path]:
    """Without the training file and the manifest, which a full is not read from."""
    paths = commit_paths(files.run_dir, files.manifest)
    return [path for path in paths if path.name.endswith((".index", ".data-00000-of-00002"))]


@pytest.mark.parametrize("replace", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_plain_file_is_refused(
    model: LiveModel, files: VerifiedFiles, replace: Callable[[Path], None]
) -> None:
    before, node = users(model), model.node
    paths = serving_paths(files)
    assert len(paths) == 2
    for path in paths:
        content = path.read_bytes()
        remove(path)
        replace(path)
        with pytest.raises(DamagedError, match=r"cannot be read: (it is not a regular file|Too many levels)"):
            restore_verified(model, files, slice_bytes=4096)
        assert (users(model), model.node) == (before, node)
        put(path, content)


class ReplacedMeanwhile(LiveModel):
    """Its full is replaced by pipes in the moment before TensorFlow opens it."""

    paths: ClassVar[list[Path]]

    def restore_full(self, prefix: Path) -> None:
        for path in self.paths:
            path.unlink()
            os.mkfifo(path)
        super().restore_full(prefix)
        assert self.node is not None


def test_tensorflow_reads_what_we_opened_whatever_is_there_now(
    full_only: Path, files: VerifiedFiles, temporary: Path
) -> None:
    ReplacedMeanwhile.paths = serving_paths(files)
    model = ReplacedMeanwhile.load(full_only)
    with pytest.raises(DamagedError, match="changed after they were verified"):
        restore_verified(model, files, slice_bytes=4096)
    assert model.node is None, "nobody can say that it was not changed before that"
    assert list(temporary.iterdir()) == []
    model.close()


def test_without_room_for_names_a_full_waits(
    files: VerifiedFiles, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / "none"))
    with pytest.raises(DamagedError, match="No such file") as caught, opened_prefix(files):
        pass
    assert caught.value.retryable


def test_without_room_for_links_a_full_waits(
    files: VerifiedFiles, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, target: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "symlink_to", fail)
    with pytest.raises(DamagedError, match="No space left") as caught, opened_prefix(files):
        pass
    assert caught.value.retryable
    assert list(temporary.iterdir()) == []
