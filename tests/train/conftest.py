from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.small_training import SlowDisk, SmallTraining

StartTraining = Callable[..., SmallTraining]


@pytest.fixture
def start_training(tmp_path: Path) -> Iterator[StartTraining]:
    """Starts trainings, in one directory unless told otherwise, and releases them in the end."""
    started: list[SmallTraining] = []

    def start(run_dir: Path = tmp_path, **options: Any) -> SmallTraining:
        started.append(SmallTraining(run_dir, **options))
        return started[-1]

    yield start
    for training in started:
        if isinstance(training.disk, SlowDisk):
            training.disk.open()
        training.trainer.release()
