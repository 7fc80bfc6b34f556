"""What save_inference_model wrote, served: a part of a model follows the chain of the whole, or nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from starlette.testclient import TestClient

import hotdelta.io as hio
import hotdelta.keras as hk
from hotdelta.chain import Kind, Manifest, Scanner, directory_of
from hotdelta.export_metadata import read_metadata
from hotdelta.sanity_limits import SanitySettings
from loader import Loader, LoaderSettings, State, StaticLoader
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from tests.io.test_inference import two_towers
from tests.loader.step_model import wait_for_position, wait_for_status
from tests.server.application import application
from tests.waiting import wait_until

ITEMS = {"item": list(range(20))}


@dataclass
class Run:
    """A trained model of two towers whose run has a full and two deltas after it."""

    model: keras.Model
    run_dir: Path
    manifests: tuple[Manifest, ...]

    def rows(self) -> bytes:
        rows: bytes = self.model.get_layer("items").embeddings.numpy().tobytes()
        return rows


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    model = two_towers()
    model.compile(hk.Adagrad(0.1), "mse")
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    with hk.DeltaCheckpoint(run_dir, None, None) as checkpoint:
        checkpoint.resume(model)
        for item in (3, 4):
            model.train_on_batch([np.array([1]), np.array([item])], np.ones((1, 1)))
            checkpoint.step()
            checkpoint.save()
    return Run(model, run_dir, Scanner(run_dir).scan().manifests)


def save(model: keras.Model, directory: Path, **options: Any) -> Path:
    return Path(hio.save_inference_model(directory, ["item"], ["items", "item_vector"], model, **options))


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tower of a model that was never trained, as an export that takes deltas."""
    directory = tmp_path_factory.mktemp("untrained")
    keras.backend.clear_session()
    save(two_towers(), directory, save_incr_model=True)
    return directory


def start(export_dir: Path, run_dir: Path) -> Loader:
    settings = LoaderSettings(export_dir=export_dir, checkpoint_dir=run_dir, poll_seconds=0.2)
    loader = Loader(settings)
    loader.start()
    return loader


def served_rows(outputs: Any) -> bytes:
    return np.asarray(outputs["items"], np.float32).tobytes()


def test_a_part_follows_the_chain_of_the_whole_model(run: Run, untrained: Path) -> None:
    loader = start(untrained, run.run_dir)
    try:
        wait_for_position(loader, run.manifests[-1].position)
        outputs, _ = loader.predict("serving_default", {"item": ITEMS["item"]})
        # It answers a moment before it has looked round for the first time.
        status = wait_for_status(loader, lambda status: status.state is State.FOLLOWING, "it follows")
    finally:
        loader.stop()

    assert served_rows(outputs) == run.rows()
    part = keras.Model(run.model.inputs[1], run.model.get_layer("item_vector").output)
    np.testing.assert_allclose(outputs["item_vector"], part(np.arange(20)), rtol=1e-6)
    assert [table.key for table in status.tables] == ["items/embeddings"]
    assert status.deltas_since_full == 2


def test_any_runtime_updates_a_part_from_the_chain_of_the_whole_model(run: Run, untrained: Path) -> None:
    loaded = tf.saved_model.load(str(untrained / "1"))
    for manifest in run.manifests:
        if manifest.kind is Kind.FULL or manifest.parent is not None:
            prefix = tf.constant([str(directory_of(run.run_dir, manifest.kind) / manifest.prefix)])
            name = "restore_full" if manifest.kind is Kind.FULL else "restore_incremental"
            loaded.signatures[name](prefix=prefix)

    found = loaded.signatures["serving_default"](item=tf.range(20, dtype=tf.int64))
    assert served_rows(found) == run.rows()


def test_a_part_that_takes_fulls_only_takes_those_of_the_whole_model(run: Run, tmp_path: Path) -> None:
    save(two_towers(), tmp_path)
    full = next(manifest for manifest in run.manifests if manifest.kind is Kind.FULL)
    loader = start(tmp_path, run.run_dir)
    try:
        wait_for_position(loader, full.position)
        status = wait_for_status(loader, lambda status: bool(status.reason), "it tells of the deltas")
    finally:
        loader.stop()
    assert "takes fulls only" in status.reason


def test_a_part_of_another_model_is_refused_and_told_why(run: Run, untrained: Path) -> None:
    broken = BrokenLinks(run.run_dir, late_seconds=0, clock=lambda: 0.0)
    chain = ChainView(run.run_dir, broken=broken, wall_clock=lambda: 0.0)
    chain.look()
    metadata = read_metadata(untrained / "1")
    schema = metadata.schema
    assert chain.plan_from(None, metadata).problem is None
    (table,) = schema.tables
    for other, reason in (
        (
            replace(table, shape=(20, 3)),
            r"is table float32\[20, 2\] in the chain, and table float32\[20, 3\]",
        ),
        (replace(table, key="goods"), "'goods' is missing in the chain"),
        (replace(table, is_table=False), "and variable float32"),
    ):
        part = replace(schema, variables=(other,))
        found = chain.plan_from(None, replace(metadata, schema=part))
        assert (found.steps, found.target) == ((), None)
        assert re.search(f"belongs to a model of schema .*{reason}", str(found.problem))
    for rules in ({"words": "a digest"}, {"items/embeddings in parts": "3"}):
        found = chain.plan_from(None, replace(metadata, schema=replace(schema, vocabularies=rules)))
        assert f"the chain makes ids by another rule: {next(iter(rules))!r}" in str(found.problem)


@pytest.fixture(scope="module")
def client(untrained: Path) -> Iterator[TestClient]:
    loader = StaticLoader(untrained, poll_seconds=0.05, sanity=SanitySettings())
    with TestClient(application(loader)) as client:
        wait_until(lambda: client.get("/readyz").status_code == 200, "it is ready")
        yield client


def test_without_a_chain_it_is_served_as_it_is_and_says_so(client: TestClient, untrained: Path) -> None:
    answered = client.post("/predict", json={"inputs": ITEMS})
    assert answered.status_code == 200, answered.text
    assert answered.json()["version"] == {"position": None, "step": 0}
    assert "X-Model-Version" not in answered.headers
    assert (
        served_rows(answered.json()["outputs"])
        == two_towers().get_layer("items").embeddings.numpy().tobytes()
    )

    version = client.get("/model/version").json()
    assert (version["update_state"], version["position"], version["export_version"]) == ("static", None, 1)
    assert "nothing but a newer export changes what is served" in version["reason"]
    asked = {"inputs": ITEMS, "min_position": "1.1"}
    assert client.post("/predict", json=asked).status_code == 409


def test_a_newer_version_takes_its_place(client: TestClient, run: Run, untrained: Path) -> None:
    newer = save(run.model, untrained)
    wait_until(
        lambda: client.get("/model/version").json()["export_version"] == int(newer.name), "it is served"
    )
    answered = client.post("/predict", json={"inputs": ITEMS})
    assert served_rows(answered.json()["outputs"]) == run.rows()
