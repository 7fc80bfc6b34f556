"""What is wrong with a store is heard of at the start, and what a mirror has to know of a model is what it serves."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Node, Position, SigningKey
from hotdelta.errors import ConfigurationError, StoreError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.orders import OrderBox, Verb
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.opening import open_store
from loader.status import LoaderStatus, Quarantined, State
from server.model_settings import ModelSettings
from server.models.mirrored import (
    LocalPlaces,
    LookAgain,
    MirroredModel,
    following_of,
    make_mirrored,
    stores_of,
)
from server.served_model import ServedModel
from tests.chain.manifests import delta, full
from tests.remote.servers import BUCKET, S3Server
from tests.server.fake_model import FakeModel
from tests.waiting import wait_until

NODE = Node(Position(1, 7), "0" * 32)


class Makes:
    """A model that follows local directories."""

    def __init__(self) -> None:
        self.directories: list[tuple[Path, Path | None]] = []
        self.pins: list[Position | None] = []
        self.model = FakeModel()

    def __call__(self, places: LocalPlaces) -> tuple[ServedModel, LookAgain]:
        self.directories.append((places.export_dir, places.checkpoint_dir))
        self.pins.append(places.pin)
        return self.model, lambda _: None


def settings(tmp_path: Path, address: str) -> ModelSettings:
    place = Address.parse(address)
    return ModelSettings(place, place, mirror_dir=tmp_path / "mirror")


def test_directories_are_followed_as_they_are(tmp_path: Path) -> None:
    makes = Makes()
    local = ModelSettings(tmp_path / "export", tmp_path / "run")
    model = make_mirrored(local, makes, told={})
    assert makes.directories == [(tmp_path / "export", tmp_path / "run")]
    assert not isinstance(model, MirroredModel)
    assert stores_of(model) == ()


def test_a_store_is_mirrored_into_directories_of_its_own(tmp_path: Path) -> None:
    makes = Makes()
    model = make_mirrored(settings(tmp_path, "memory://ranker/run"), makes, told={})
    try:
        ((export_dir, checkpoint_dir),) = makes.directories
        assert checkpoint_dir is not None
        assert export_dir != checkpoint_dir
        assert export_dir.parent.parent == checkpoint_dir.parent.parent == tmp_path / "mirror"
        assert {store.address for store in stores_of(model)} == {"memory://ranker/run"}
        with pytest.raises(ConfigurationError, match="another server mirrors"):
            make_mirrored(settings(tmp_path, "memory://ranker/run"), makes, told={})
    finally:
        model.stop()
    again = make_mirrored(settings(tmp_path, "memory://ranker/run"), makes, told={})
    again.stop()


def test_a_model_begins_where_the_fleet_was_ordered_to_be_and_obeys(tmp_path: Path) -> None:
    key_file, address = tmp_path / "orders.key", "memory://ranker/ordered"
    key_file.write_text("k" * 64)
    key, store = SigningKey.read(key_file), open_store(address)
    for manifest in (full("1.1"), delta("1.2", "1.1")):
        CommitLog(store).add(manifest, manifest.to_json())
    box = OrderBox(store)
    box.give(Verb.PIN, full("1.1").node, given_by="ops", key=key)
    makes = Makes()
    told = replace(settings(tmp_path, address), orders_key_file=key_file, pin=Position(1, 2))
    model = make_mirrored(told, makes, told={})
    try:
        assert makes.pins == [Position(1, 1)], "the fleet's order comes before the setting"
        model.start()
        box.give(Verb.RESUME, delta("1.2", "1.1").node, given_by="ops", key=key)
        wait_until(lambda: makes.model.orders == [("resume", None)], lambda: f"{makes.model.orders}")
    finally:
        model.stop()
    again = make_mirrored(told, makes, told={})
    again.stop()
    assert makes.pins[1:] == [Position(1, 2)]


def test_orders_to_a_fleet_need_a_store(tmp_path: Path) -> None:
    key_file = tmp_path / "orders.key"
    key_file.write_text("k" * 64)
    with pytest.raises(ConfigurationError, match="--orders-key-file without a store"):
        ModelSettings(tmp_path / "export", tmp_path / "run", orders_key_file=key_file)


def test_a_bucket_that_is_not_there_is_told(seaweedfs: S3Server, tmp_path: Path) -> None:
    address = seaweedfs.address("run").replace(f"s3://{BUCKET}/", "s3://no-such-bucket/")
    with pytest.raises(StoreError, match="bucket") as caught:
        make_mirrored(settings(tmp_path, address), Makes(), told={})
    assert not caught.value.retryable


def test_credentials_that_are_refused_are_told(
    seaweedfs: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-of-ours")
    with pytest.raises(StoreError) as caught:
        make_mirrored(settings(tmp_path, seaweedfs.new_address()), Makes(), told={})
    assert not caught.value.retryable
    assert "wrong-secret-of-ours" not in str(caught.value)


def test_a_store_that_is_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, os.environ.get(name, "somebody"))
    address = "s3://tests/run?endpoint=http://127.0.0.1:9&connect_timeout=1s"
    make_mirrored(settings(tmp_path, address), Makes(), told={}).stop()


@pytest.mark.parametrize(
    "status,expected",
    [
        (LoaderStatus(State.WAITING, "no export", is_ready=False), Following()),
        (
            LoaderStatus(State.FOLLOWING, "", is_ready=True, is_incremental=True, node=NODE),
            Following(NODE),
        ),
        (
            LoaderStatus(State.FOLLOWING, "", is_ready=True, is_incremental=False, node=NODE),
            Following(NODE, wants_full=True),
        ),
        (
            LoaderStatus(State.DEGRADED, "a hole", is_ready=True, is_incremental=True, node=NODE),
            Following(NODE, wants_full=True),
        ),
        (
            LoaderStatus(
                State.WAITING, "", is_ready=False, quarantined=(Quarantined(NODE, "NaN", "values"),)
            ),
            Following(wants_full=True),
        ),
        (
            LoaderStatus(
                State.PINNED, "", is_ready=True, is_incremental=True, node=NODE, pinned=Position(1, 7)
            ),
            Following(NODE, Position(1, 7)),
        ),
    ],
)
def test_what_a_mirror_is_told_of_a_model(status: LoaderStatus, expected: Following) -> None:
    assert following_of(status) == expected
