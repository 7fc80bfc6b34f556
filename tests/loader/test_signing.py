"""With a key only what its holder signed is used, and it is read from a copy that nobody else can write to."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotdelta.chain import Manifest, Position, SigningKey
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.errors import ChainError, ConfigurationError
from tests.bad_states import Harm, forge, fulls, plant, spoil
from tests.loader.step_model import (
    StepModel,
    Trainer,
    answer,
    assert_serves,
    commit_paths,
    export,
    find_commit,
    serving,
    wait_for_position,
    wait_for_status,
)
from tests.signing_keys import KEY, holding
from tests.waiting import wait_until

pytestmark = pytest.mark.I4


@pytest.fixture(scope="module")
def prepared_signed_root(tmp_path_factory: pytest.TempPathFactory, key_file: Path) -> Path:
    root = tmp_path_factory.mktemp("signed")
    with holding(key_file):
        trainer = Trainer(root / "run")
        trainer.train()
        trainer.close()
        # What stock TensorFlow leaves beside a chain is not exported.
        planted = Path(shutil.copytree(root / "run", root / "planted"))
        plant(planted)
        export(planted, root / "export")
    return root


@pytest.fixture
def signed_root(prepared_signed_root: Path, tmp_path: Path, has_key: None) -> Path:
    for name in ("run", "export"):
        shutil.copytree(prepared_signed_root / name, tmp_path / name)
    return tmp_path


def rewrite(root: Path, position: Position, change: Callable[[Manifest], Manifest]) -> None:
    manifest = find_commit(root / "run", position)
    path = commit_paths(root / "run", manifest)[-1]
    content = change(manifest).to_json()
    path.unlink()
    path.write_bytes(content)


def test_what_is_signed_is_followed_through_private_copies(signed_root: Path, key_file: Path) -> None:
    with serving(signed_root, signing_key_file=key_file) as loader:
        wait_for_position(loader, Position(1, 2))
        trainer = Trainer(signed_root / "run")
        for number in range(3):
            wait_for_position(loader, trainer.train([number]))
        wait_for_position(loader, trainer.train_full([5]))
        assert_serves(loader, trainer.model)
        assert loader._copies is not None
        copies = loader._copies._root.path()
        wait_until(lambda: list(copies.iterdir()) == [], "what was copied is gone")
        assert copies.stat().st_mode & 0o077 == 0
        trainer.close()
    assert not copies.exists()


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda manifest: replace(manifest, signature=""), "not signed"),
        (lambda manifest: replace(manifest, signature="0" * 64), "signature is wrong"),
        (lambda manifest: replace(manifest, step=manifest.step + 1), "signature is wrong"),
        (lambda manifest: SigningKey(b"x" * 32).sign(manifest), "signature is wrong"),
    ],
    ids=["unsigned", "made up", "changed", "another key"],
)
def test_what_is_not_signed_with_the_key_is_refused(
    signed_root: Path, key_file: Path, change: Callable[[Manifest], Manifest], reason: str
) -> None:
    trainer = Trainer(signed_root / "run")
    newest = trainer.train([1])
    trainer.close()
    rewrite(signed_root, newest, change)
    with serving(signed_root, signing_key_file=key_file) as loader:
        wait_for_position(loader, Position(1, 2))
        status = wait_for_status(loader, lambda status: bool(status.refused), "the refusal")
        assert reason in status.refused[0].reason
        assert answer(loader)[1].position == Position(1, 2)


@pytest.mark.parametrize("harm", [forge, spoil], ids=["unsigned", "other bytes"])
def test_a_server_that_starts_takes_no_full_that_is_not_what_was_signed(
    signed_root: Path, key_file: Path, harm: Harm
) -> None:
    """There are no deltas, so that it is the full or nothing."""
    trainer = Trainer(signed_root / "run")
    trainer.train_full([1])
    trainer.close()
    for path in (signed_root / "run" / names.DELTA_DIRECTORY).glob("*ckpt*"):
        path.unlink()
    fulls(signed_root / "run", harm)
    with serving(signed_root, signing_key_file=key_file) as loader:
        wait_for_status(loader, lambda status: bool(status.refused or status.quarantined), "the refusal")
        wait_for_position(loader, Position(1, 2))
        outputs, version = answer(loader)
    assert version.position == Position(1, 2)
    assert set(np.unique(outputs["users"])) == {1.0}


def test_without_a_key_an_unsigned_manifest_is_taken(signed_root: Path) -> None:
    trainer = Trainer(signed_root / "run")
    newest = trainer.train([1])
    trainer.close()
    rewrite(signed_root, newest, lambda manifest: replace(manifest, signature=""))
    with serving(signed_root) as loader:
        wait_for_position(loader, newest)
        assert_serves(loader, trainer.model)


def test_a_trainer_goes_on_from_what_was_signed_only(signed_root: Path) -> None:
    trainer = Trainer(signed_root / "run")
    good = trainer.train([1])
    forged = trainer.train([2])
    trainer.close()
    rewrite(signed_root, forged, lambda manifest: SigningKey(b"x" * 32).sign(manifest))
    again = Trainer(signed_root / "run", model=StepModel())
    assert again.writer.resumed is not None
    assert again.writer.resumed.position == good
    again.close()


def test_without_a_key_a_trainer_goes_on_from_what_somebody_else_signed(
    signed_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(signed_root / "run")
    forged = trainer.train([2])
    trainer.close()
    rewrite(signed_root, forged, lambda manifest: SigningKey(b"x" * 32).sign(manifest))
    monkeypatch.delenv(KEY_FILE_VARIABLE)
    again = Trainer(signed_root / "run", model=StepModel())
    assert again.writer.resumed is not None
    assert again.writer.resumed.position == forged
    again.close()


def test_a_trainer_with_a_key_does_not_start_over_beside_a_chain_that_it_cannot_trust(
    signed_root: Path, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(b"another key that is long enough to be one")
    with holding(tmp_path / "key"), pytest.raises(ChainError, match="its signature is wrong"):
        Trainer(signed_root / "run")


def test_every_field_of_a_manifest_is_signed(signed_root: Path) -> None:
    manifest = find_commit(signed_root / "run", Position(1, 2))
    key = SigningKey(KEY)
    assert key.has_signed(manifest)
    assert key.has_signed(Manifest.from_json(manifest.to_json()))
    for changed in (
        replace(manifest, created_at=manifest.created_at + 1),
        replace(manifest, watermark=1.0),
        replace(manifest, parent=None),
        replace(manifest, files=manifest.files[:-1]),
        replace(manifest, tables={}),
        replace(manifest, prefix=f"{manifest.prefix}{names.DELTA_STEM}"),
    ):
        assert not key.has_signed(changed)


def test_a_key_that_is_too_short_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"secret\n")
    for name in ("short", "missing"):
        with pytest.raises(ConfigurationError):
            SigningKey.read(tmp_path / name)
