"""A run directory with its export is made once and copied: tracing and exporting take seconds."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.loader.step_model import Trainer, export


@pytest.fixture(scope="session")
def prepared_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run/ with a full at 1.1 and a delta at 1.2, and an incremental export of 1.2."""
    root = tmp_path_factory.mktemp("prepared")
    trainer = Trainer(root / "run")
    trainer.train()
    export(root / "run", root / "export")
    trainer.close()
    return root


@pytest.fixture
def root(prepared_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(prepared_root, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go for the time of a test."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def train(root: Path) -> Iterator[Callable[[], Trainer]]:
    """Starts trainers on the run directory: each resumes at the tip and takes a new run number."""
    trainers: list[Trainer] = []

    def start() -> Trainer:
        for trainer in trainers:
            trainer.close()
        trainers[:] = [Trainer(root / "run")]
        return trainers[0]

    yield start
    for trainer in trainers:
        trainer.close()
