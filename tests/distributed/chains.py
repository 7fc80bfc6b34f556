"""What a chain that a cluster wrote must be: exact, and served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from exporter import export_saved_model
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.history.scan import Scanner
from loader import Loader, LoaderSettings
from tests.chain_replay import replay
from tests.distributed.cluster_model import ROWS


def committed(run_dir: Path) -> list[Manifest]:
    return sorted(Scanner(run_dir).scan().manifests, key=lambda manifest: manifest.position)


def assert_chain_holds(run_dir: Path, trained: Path) -> None:
    """The newest position is what the parameter servers held, bit for bit, whichever full one starts from."""
    found = committed(run_dir)
    with np.load(trained) as values:
        expected = {key: values[key].tobytes() for key in values.files}
    fulls = [manifest.position for manifest in found if manifest.kind is Kind.FULL]
    for full in (fulls[0], fulls[-1]):
        assert replay(run_dir, found[-1].position, expected, full=full) == expected


@contextmanager
def serving(run_dir: Path, export_dir: Path) -> Iterator[Loader]:
    export_saved_model(run_dir, export_dir, save_incr_model=True)
    loader = Loader(LoaderSettings(export_dir, run_dir, poll_seconds=0.2))
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()


def assert_served(loader: Loader, run_dir: Path, trained: Path) -> None:
    """The rows that a prediction uses are those of the parameter servers, at the newest position."""
    newest = committed(run_dir)[-1].position
    assert loader.wait_for(newest, 60)
    answers, version = loader.predict("serving_default", {"ids": np.arange(ROWS)})
    assert version.position == newest
    with np.load(trained) as values:
        assert answers["rows"].tobytes() == values["table"].tobytes()
