"""What a trainer tells Prometheus and TensorBoard is what it has saved."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from prometheus_client import CollectorRegistry, generate_latest

import hotdelta.keras as hk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.chain.history.scan import Scanner
from hotdelta.errors import ConfigurationError
from hotdelta.train import CheckpointConfig, DeltaWriter
from tests.event_files import scalars_of
from tests.full_disk import small_files_only
from tests.remote.servers import free_ports
from tests.server.metrics.scrape import Scrape
from tests.server.metrics.test_reference import described

BY_HAND: dict[str, Any] = {"save_secs": None, "save_incremental_secs": None}
TABLE = "rows"


class Loop:
    """Writes rows, tells of them, and saves."""

    def __init__(self, run_dir: Path | str | CheckpointConfig, **options: Any) -> None:
        self.rows = tf.Variable(tf.zeros([30, 2]))
        intervals = {} if isinstance(run_dir, CheckpointConfig) else BY_HAND
        self.writer = DeltaWriter(
            run_dir, {TABLE: self.rows}, tables=[TABLE], tracking={TABLE: "touched"}, **intervals, **options
        )

    def commit(self, *ids: int) -> None:
        tf.raw_ops.ResourceScatterUpdate(
            resource=self.rows.handle,
            indices=list(ids),
            updates=np.full([len(ids), 2], time.time(), np.float32),
        )
        self.writer.touch(TABLE, list(ids))
        self.writer.step()
        self.writer.save()


def told_by(registry: CollectorRegistry) -> Scrape:
    return Scrape(generate_latest(registry).decode())


def told_at(port: int) -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return Scrape(answer.read().decode())


def deltas(run_dir: Path) -> list[Manifest]:
    return [manifest for manifest in Scanner(run_dir).scan().manifests if manifest.kind is Kind.DELTA]


def test_commits_are_counted_with_their_rows_and_bytes(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    loop = Loop(tmp_path, metrics_registry=registry)
    try:
        before = time.time()
        loop.commit(1, 2, 3)
        loop.commit(2)
        told, here = told_by(registry), str(tmp_path)
        assert told.get("hotdelta_trainer_commits_total", directory=here, kind="delta") == 2
        assert told.get("hotdelta_trainer_commits_total", directory=here, kind="full") == 1
        assert told.get("hotdelta_trainer_rows_total", directory=here, table=TABLE) == 4
        written = told.get("hotdelta_trainer_bytes_total", directory=here, kind="delta")
        assert written == sum(manifest.total_bytes for manifest in deltas(tmp_path))
        for stage in ("stall", "lag"):
            assert told[f"hotdelta_trainer_{stage}_seconds_count"] >= 2
        count = told.get("hotdelta_trainer_write_seconds_count", directory=here, kind="delta")
        assert count == 2
        newest = deltas(tmp_path)[-1]
        assert (told["hotdelta_trainer_run"], told["hotdelta_trainer_seq"]) == (
            newest.position.run,
            newest.position.seq,
        )
        assert told["hotdelta_trainer_step"] == 2
        assert before <= told["hotdelta_trainer_last_commit_timestamp_seconds"] <= time.time()
        assert told["hotdelta_trainer_failures_total"] == 0
    finally:
        loop.writer.close()
    assert told_by(registry).families == {}


def test_a_save_that_fails_is_counted(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    loop = Loop(tmp_path, metrics_registry=registry)
    with small_files_only():
        loop.commit(1)
    assert told_by(registry)["hotdelta_trainer_failures_total"] == 1
    loop.commit(2)
    told = told_by(registry)
    assert told.get("hotdelta_trainer_rows_total", directory=str(tmp_path), table=TABLE) == 2
    loop.writer.close()


def test_two_chains_of_a_process_share_a_registry(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    loops = [Loop(tmp_path / name, metrics_registry=registry) for name in ("one", "two")]
    loops[0].commit(1)

    told = told_by(registry)

    for name, count in (("one", 1), ("two", 0)):
        directory = str(tmp_path / name)
        assert told.get("hotdelta_trainer_commits_total", directory=directory, kind="delta") == count
    for loop in loops:
        loop.writer.close()


def test_a_port_is_open_from_the_first_save_to_the_last(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    loop = Loop(tmp_path, metrics_port=port)
    loop.commit(1)
    told = told_at(port)
    assert told.get("hotdelta_trainer_commits_total", directory=str(tmp_path), kind="delta") == 1
    assert told["process_start_time_seconds"] > 0
    loop.writer.close()
    with pytest.raises(OSError, match="refused"):
        told_at(port)


def test_a_port_that_is_taken_is_heard_of_at_once_and_nothing_is_held(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen()
        with pytest.raises(ConfigurationError, match=f"metrics_port {port}: Address already in use"):
            Loop(tmp_path, metrics_port=port)
    Loop(tmp_path, metrics_port=port).writer.close()


@pytest.mark.parametrize("port", ["metrics", "localhost", 70_000, True, -1])
def test_what_is_no_port_is_refused(tmp_path: Path, port: Any) -> None:
    with pytest.raises(ConfigurationError, match="metrics_port is"):
        Loop(tmp_path, metrics_port=port)


def test_what_is_no_registry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="metrics_registry is 9100"):
        Loop(tmp_path, metrics_registry=9100)


def test_a_config_says_who_is_told_too(tmp_path: Path) -> None:
    registry, (port,) = CollectorRegistry(), free_ports(1)
    config = CheckpointConfig(
        tmp_path, step_interval=1000, metrics_registry=registry, metrics_port=f"127.0.0.1:{port}"
    )
    loop = Loop(config)
    loop.commit(1)
    for told in (told_by(registry), told_at(port)):
        assert told.get("hotdelta_trainer_commits_total", directory=str(tmp_path), kind="delta") == 1
    loop.writer.close()


def test_the_callback_tells_while_it_is_open(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    model = keras.Sequential([keras.Input([1], dtype="int64"), hk.Embedding(10, 2), keras.layers.Flatten()])
    model.compile(hk.SGD(0.1), "mse")
    options: dict[str, Any] = {**BY_HAND, "save_incremental_steps": 1}
    with hk.DeltaCheckpoint(tmp_path, **options, metrics_registry=registry) as callback:
        model.fit(np.ones([6, 1]), np.ones([6, 2]), batch_size=2, verbose=0, callbacks=[callback])
        told = told_by(registry)
        assert told.get("hotdelta_trainer_commits_total", directory=str(tmp_path), kind="delta") == len(
            deltas(tmp_path)
        )
        assert told["hotdelta_trainer_step"] == 3
    assert told_by(registry).families == {}


def test_each_delta_is_three_scalars_of_tensorboard(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run", tensorboard_dir=tmp_path / "logs")
    loop.commit(1, 2, 3)
    loop.commit(1)

    found = scalars_of(tmp_path / "logs")

    assert [(step, tag) for step, tag, _ in found] == [
        (step, f"hotdelta/{name}") for step in (1, 2) for name in ("lag_seconds", "rows", "bytes")
    ]
    committed = deltas(tmp_path / "run")
    assert [value for _, tag, value in found if tag == "hotdelta/rows"] == [3, 1]
    assert [value for _, tag, value in found if tag == "hotdelta/bytes"] == [
        manifest.total_bytes for manifest in committed[-2:]
    ]
    assert all(0 <= value < 600 for _, tag, value in found if tag == "hotdelta/lag_seconds")
    loop.writer.close()


def test_a_log_directory_that_cannot_be_written_stops_no_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    (tmp_path / "file").touch()
    loop = Loop(tmp_path / "run", tensorboard_dir=tmp_path / "file" / "logs")
    loop.commit(1)
    loop.commit(2)

    assert [manifest.step for manifest in deltas(tmp_path / "run")][-2:] == [1, 2]
    assert caplog.text.count("TensorBoard is told nothing") == 1
    loop.writer.close()


def test_the_page_names_every_metric_of_a_trainer_and_promtool_finds_nothing_to_say(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    # What is published is counted only where there is a store.
    loop = Loop("memory://told", spool_dir=tmp_path, metrics_registry=registry)
    loop.commit(1)
    text = generate_latest(registry)
    loop.writer.close()

    families = Scrape(text.decode()).families.values()

    assert described("Trainer") == {
        f"{family.name}_total" if family.type == "counter" else family.name: {
            label for sample in family.samples for label in sample.labels if label != "le"
        }
        for family in families
    }
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: it is in Debian's package prometheus (make packages)")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
