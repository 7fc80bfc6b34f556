"""A store is away for more than a hundred deltas: what follows from it then is what was trained, bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Kind, Manifest
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.mirror.mirror import Mirror
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from loader import Loader, LoaderSettings
from tests.loader.step_model import (
    ROWS,
    SIGNATURE,
    KeyedStepModel,
    Trainer,
    export,
    wait_for_position,
)
from tests.remote.fault_proxy import Fault, FaultProxy, every_request
from tests.remote.servers import S3Server
from tests.waiting import wait_until

pytestmark = [pytest.mark.I1, pytest.mark.I6]

DELTAS = 110


@contextmanager
def following(store: Store, export_dir: Path, mirror_dir: Path) -> Iterator[Loader]:
    """As the server wires them."""
    loader = Loader(LoaderSettings(export_dir, mirror_dir, poll_seconds=0.05))
    mirror = Mirror(
        store,
        mirror_dir,
        MirrorSettings(poll_seconds=0.05),
        follower=lambda: Following(loader.status().node),
        on_arrival=loader.look_again,
    )
    mirror.start()
    loader.start()
    try:
        yield loader
    finally:
        loader.stop()
        mirror.stop()


def served(loader: Loader) -> dict[str, bytes]:
    answer, _ = loader.predict(SIGNATURE, {"ids": np.arange(ROWS)})
    return {name: np.asarray(value).tobytes() for name, value in answer.items()}


def logged(store: Store, kind: Kind) -> list[Manifest]:
    log = CommitLog(store)
    return [log.read(kind, position)[0] for position in log.positions_after(kind, None)]


def test_a_hundred_deltas_are_caught_up_with_as_few(
    seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys come and go, and a full is written meanwhile, which no folded delta steps over."""
    monkeypatch.setenv("HOTDELTA_SPOOL", str(tmp_path / "spools"))
    monkeypatch.setattr("hotdelta.remote.publish.publisher._MOST_PAUSE_SECONDS", 0.5)
    prefix = seaweedfs.new_address().partition("?")[0].removeprefix("s3://tests/")
    with FaultProxy(seaweedfs.endpoint) as proxy:
        address: Any = seaweedfs.address(prefix, endpoint=proxy.endpoint)
        trainer = Trainer(address, model=KeyedStepModel())
        first = trainer.train()
        figures = trainer.writer.status.publishing
        assert figures is not None
        wait_until(lambda: not figures.unpublished.bytes, "it is not published")
        (spool,) = (tmp_path / "spools").iterdir()
        export(spool, tmp_path / "export")
        direct = open_store(seaweedfs.address(prefix))
        with following(direct, tmp_path / "export", tmp_path / "mirror") as loader:
            wait_for_position(loader, first)
            proxy.plan = every_request(Fault.DROP)
            trainer.train([1])
            wait_until(lambda: proxy.faults[Fault.DROP], "nothing was tried")
            for step in range(DELTAS):
                trainer.train_full([step % ROWS]) if step == DELTAS // 2 else trainer.train([step % ROWS])
            assert figures.unpublished.deltas == DELTAS + 1
            proxy.plan = None
            newest = trainer.train([3])
            wait_for_position(loader, newest)
            assert served(loader) == trainer.model.bits()
            assert loader.status().quarantined == ()
        trainer.close()
    assert figures.folded > DELTAS - 10
    deltas, fulls = logged(direct, Kind.DELTA), logged(direct, Kind.FULL)
    assert len(deltas) < 10
    for previous, manifest in itertools.pairwise(deltas):
        assert manifest.parent == previous.node
    assert {full.node for full in fulls[1:]} <= {manifest.node for manifest in deltas}
    monkeypatch.setenv("HOTDELTA_SPOOL", str(tmp_path / "other"))
    other = Trainer(seaweedfs.address(prefix), model=KeyedStepModel())  # type: ignore[arg-type]
    assert other.writer.resumed is not None
    assert other.writer.resumed.position == newest
    assert other.model.bits() == trainer.model.bits()
    other.close()
