"""A model has answered before anybody else asks it: what its export brings, or what its signatures say."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from hotdelta.chain import SignatureSpec, TensorSpec
from hotdelta.errors import RequestError
from hotdelta.sanity_limits import SanitySettings
from loader import StaticLoader
from loader.model import warm_up as module
from loader.model.live_model import LiveModel
from loader.model.warm_up import MAX_REQUESTS, WARM_UP_FILE, WarmedUp, read_requests, warm_up
from tests.loader.model.compiled_model import ASKED, ROWS
from tests.loader.step_model import SIGNATURE, export, serving, wait_for_status
from tests.waiting import LIMIT_SECONDS, wait_until

HERE = Path(__file__).resolve().parent
# Written with the stubs of tensorflow-serving-api: ids for two predictions, then a signature and an input that no model
# has, and a classification.
RECORDED = HERE / "tf_serving_warmup_requests"
SIGNATURES = {
    "serving_default": SignatureSpec((TensorSpec("ids", (None,), "int64"),), ()),
    "text": SignatureSpec((TensorSpec("text", (None, 2), "string"), TensorSpec("scale", (), "float32")), ()),
}


class Asked:
    """What a model was asked; it has no other signatures than these."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, signature: str, feeds: Mapping[str, Any]) -> None:
        if (
            signature not in SIGNATURES
            or {each.name for each in SIGNATURES[signature].inputs} != feeds.keys()
        ):
            raise RequestError(f"there is no {signature} with {sorted(feeds)}")
        self.requests.append((signature, {name: array.tolist() for name, array in feeds.items()}))


def put(export_dir: Path, source: Path = RECORDED) -> Path:
    target = export_dir / WARM_UP_FILE
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)
    return export_dir


def test_no_request_is_the_first_of_its_size_after_the_warm_up(tmp_path: Path) -> None:
    """Counted in programs that XLA compiled: each size of a batch is one."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.loader.model.compiled_model", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    loaded, warm, *after = json.loads(done.stdout.splitlines()[-1])
    assert warm - loaded in (ROWS, ROWS - 1)  # the export was tried with one row
    assert after[:-1] == [warm] * (len(ASKED) - 1)
    # It counts: what is larger than any batch is compiled when it comes.
    assert after[-1] == warm + 1


def test_what_was_recorded_for_tensorflow_serving_is_asked(tmp_path: Path) -> None:
    asked = Asked()
    found = warm_up(asked, put(tmp_path), SIGNATURES, sizes=[1, 8])

    assert asked.requests == [
        ("serving_default", {"ids": [0, 1, 2]}),
        ("serving_default", {"ids": [0, 1, 2, 3, 4]}),
    ]
    assert found == WarmedUp("the export", answered=2, refused=2)


def test_without_a_record_each_signature_is_asked_for_each_size(tmp_path: Path) -> None:
    asked = Asked()
    found = warm_up(asked, tmp_path, SIGNATURES, sizes=[1, 2])

    assert asked.requests == [
        ("serving_default", {"ids": [0]}),
        ("text", {"text": [[b"", b""]], "scale": 0.0}),
        ("serving_default", {"ids": [0, 0]}),
        ("text", {"text": [[b"", b""]] * 2, "scale": 0.0}),
    ]
    assert found == WarmedUp("its signatures", answered=4, refused=0)


def records_of(path: Path) -> list[bytes]:
    return list(tf.data.TFRecordDataset(str(path)).as_numpy_iterator())


def broken(directory: Path) -> list[Path]:
    """Cut, changed, no records, and records that are no messages."""
    data = RECORDED.read_bytes()
    contents = [data[:-3], data[:20] + b"\xff" + data[21:], b"no records"]
    paths = [directory / str(number) for number in range(len(contents))]
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(content)
    first = records_of(RECORDED)[0]
    for number, record in enumerate((first[:-1], b"\x32\xff\xff", b"\xff" * 12, b"\x0f")):
        paths.append(directory / f"records-{number}")
        with tf.io.TFRecordWriter(str(paths[-1])) as writer:
            writer.write(record)
    return paths


def test_a_record_that_cannot_be_read_is_said_and_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for path in broken(tmp_path):
        asked = Asked()
        caplog.clear()
        assert (
            warm_up(asked, put(tmp_path / "export", path), SIGNATURES, sizes=[1]).source == "its signatures"
        )
        assert len(asked.requests) == 2
        assert "warm-up requests cannot be read" in caplog.text


def test_a_record_without_end_has_one(tmp_path: Path) -> None:
    first = records_of(RECORDED)[0]
    with tf.io.TFRecordWriter(str(tmp_path / "many")) as writer:
        for _ in range(MAX_REQUESTS + 10):
            writer.write(first)
    assert len(read_requests(tmp_path / "many")) == MAX_REQUESTS


def test_a_warm_up_that_takes_too_long_gives_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_SECONDS", 2.5)
    asked, times = Asked(), iter(range(100))
    assert warm_up(asked, put(tmp_path), SIGNATURES, sizes=[1], clock=times.__next__).answered == 2
    assert "2 are left out after 2.5 seconds" in caplog.text


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    wanted = ("warmed up", "serving export")
    return [phrase for each in caplog.records for phrase in wanted if each.getMessage().startswith(phrase)]


@pytest.fixture
def heard(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level("INFO")
    return caplog


def test_every_export_is_warm_before_it_serves(root: Path, heard: pytest.LogCaptureFixture) -> None:
    put(root / "export" / "1")
    with serving(root, warm_up_rows=8) as loader:
        # What is said comes after the first request may.
        wait_until(lambda: len(events(heard)) == 2, lambda: f"both were said: {events(heard)}")
        assert events(heard) == ["warmed up", "serving export"]
        assert loader.status().is_ready
        assert 'source="the export" answered=2 refused=2' in heard.text
        export(root / "run", root / "export")
        wait_for_status(loader, lambda status: status.export_version == 2, "the next export is served")
    assert events(heard)[2:] == ["warmed up", "serving export"]


def test_a_second_model_for_a_full_is_as_warm_as_the_first(
    root: Path, heard: pytest.LogCaptureFixture
) -> None:
    model = LiveModel.load(root / "export" / "1")
    model.warm_up_for(8)
    heard.clear()
    model.load_again().close()
    model.close()
    assert events(heard) == ["warmed up"]
    assert 'source="its signatures" answered=2 refused=0' in heard.text


def test_an_export_that_nothing_updates_is_warm_before_it_serves(
    root: Path, heard: pytest.LogCaptureFixture
) -> None:
    loader = StaticLoader(root / "export", poll_seconds=0.05, sanity=SanitySettings(), warm_up_rows=8)
    loader.start()
    try:
        wait_until(lambda: loader.status().is_ready, "it is ready")
        assert events(heard) == ["warmed up", "serving export"]
        assert 'source="its signatures" answered=2 refused=0' in heard.text
        assert loader.predict(SIGNATURE, {"ids": np.array([1])})[1].export_version == 1
    finally:
        loader.stop()
