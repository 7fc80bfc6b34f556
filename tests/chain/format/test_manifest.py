from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import (
    FileRecord,
    HighestStep,
    Kind,
    Manifest,
    Node,
    Position,
    TableRecord,
    Tracking,
    decode_identity,
    encode_identity,
    new_state_id,
)
from hotdelta.chain.format import names
from hotdelta.chain.format.manifest import MAX_MANIFEST_BYTES
from hotdelta.errors import ManifestError

PREFIX = "incremental_model.ckpt-1010"
MANIFEST = Manifest(
    kind=Kind.DELTA,
    position=Position(3, 17),
    state_id="0123456789abcdef" * 2,
    parent=Node(Position(3, 16), "f" * 32),
    base=Position(3, 10),
    prefix=PREFIX,
    step=1010,
    created_at=1731.5,
    schema="c" * 64,
    tables={"tower/emb": TableRecord((100, 16), "float32", Tracking.TOUCHED, 7, 1)},
    files=(
        FileRecord(f"{PREFIX}.index", 300, "1" * 64, names.ROLE_INDEX),
        FileRecord(f"{PREFIX}.data-00000-of-00002", 4096, "2" * 64, names.ROLE_SERVING),
        FileRecord(f"{PREFIX}.data-00001-of-00002", 0, "3" * 64, names.ROLE_TRAINING),
    ),
    highest_step=HighestStep(1000, 1010),
    watermark=1700.25,
)
DOCUMENT: dict[str, Any] = json.loads(MANIFEST.to_json())


def test_manifest_survives_its_json() -> None:
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST


def test_manifest_knows_its_sums() -> None:
    assert MANIFEST.total_bytes == 4396
    assert MANIFEST.serving_bytes == 4396
    assert MANIFEST.rows_changed == 7
    assert MANIFEST.node == Node(Position(3, 17), MANIFEST.state_id)


GROWING = TableRecord((100, 16), "float32", Tracking.TOUCHED, 7, rows_in_use=40)


def test_growing_table_survives_its_json_and_tells_its_shapes_apart() -> None:
    manifest = replace(MANIFEST, tables={**MANIFEST.tables, "users/rows": GROWING})
    assert Manifest.from_json(manifest.to_json()) == manifest
    assert GROWING.shape == (100, 16)
    assert GROWING.stored_shape == (40, 16)
    assert MANIFEST.tables["tower/emb"].stored_shape == (100, 16)


def test_only_what_an_older_reader_would_misread_has_the_newer_version() -> None:
    growing = replace(MANIFEST, tables={"users/rows": GROWING})
    assert json.loads(growing.to_json())["format_version"] == 2
    assert DOCUMENT["format_version"] == 1
    assert "rows_in_use" not in DOCUMENT["tables"]["tower/emb"]


@pytest.mark.parametrize("version", [1, 2])
def test_every_version_so_far_is_read(version: int) -> None:
    assert Manifest.from_json(json.dumps({**DOCUMENT, "format_version": version}).encode()) == MANIFEST


def test_unknown_fields_of_the_same_version_are_ignored() -> None:
    assert Manifest.from_json(json.dumps({**DOCUMENT, "later": 1}).encode()) == MANIFEST


@pytest.mark.parametrize("name", DOCUMENT)
def test_missing_field_is_named(name: str) -> None:
    document = {key: value for key, value in DOCUMENT.items() if key != name}
    with pytest.raises(ManifestError, match=name):
        Manifest.from_json(json.dumps(document).encode())


def with_file(**change: object) -> dict[str, Any]:
    return {"files": [{**DOCUMENT["files"][0], **change}, *DOCUMENT["files"][1:]]}


def with_table(**change: object) -> dict[str, Any]:
    return {"tables": {"tower/emb": {**DOCUMENT["tables"]["tower/emb"], **change}}}


@pytest.mark.parametrize(
    "change",
    [
        {"format_version": 3},
        {"format_version": 0},
        {"format_version": "1"},
        {"kind": "half"},
        {"position": "3"},
        {"position": "0.1"},
        {"position": "3.99999999999"},
        {"position": "3.-1"},
        {"position": 3.17},
        {"state_id": "f" * 31},
        {"state_id": "F" * 32},
        {"parent": None},
        {"parent": {}},
        {"parent": []},
        {"parent": 5},
        {"parent": {"position": "3.17", "state_id": "f" * 32}},
        {"base": ""},
        {"base": "x"},
        {"prefix": "../x"},
        {"prefix": "/x"},
        {"prefix": ".hidden"},
        {"prefix": "a" * 300},
        {"prefix": "other"},
        {"step": 1.5},
        {"step": True},
        {"step": 2**63},
        {"created_at": "now"},
        {"created_at": 10**400},
        {"watermark": []},
        {"schema": "c" * 63},
        {"highest_step": {}},
        {"highest_step": {"full": None, "delta": 1}},
        {"tables": []},
        {"tables": {"t": 1}},
        with_table(shape=[]),
        with_table(shape=[1] * 33),
        with_table(shape=[-1, 16]),
        with_table(shape=[2**40, 2**40]),
        with_table(shape=[True, 16]),
        with_table(shape="100"),
        with_table(dtype=""),
        with_table(tracking="guessed"),
        with_table(rows_changed=101),
        with_table(rows_deleted=101),
        with_table(rows_changed=-1),
        with_table(rows_in_use=101),
        with_table(rows_in_use=6),
        with_table(rows_in_use=-1),
        with_table(rows_in_use=None),
        with_table(rows_in_use="7"),
        {"files": {}},
        {"files": []},
        {"files": [1]},
        {"files": [*DOCUMENT["files"], DOCUMENT["files"][0]]},
        with_file(name="other.index"),
        with_file(name=f"{PREFIX}.x/../../etc"),
        with_file(name=f"{PREFIX}.x\n"),
        with_file(bytes=-1),
        with_file(blake3="1"),
        with_file(role="secret"),
        with_file(role=names.ROLE_SERVING),
    ],
    ids=str,
)
def test_malformed_field_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(json.dumps({**DOCUMENT, **change}).encode())


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[" * 100_000,
        b" " * (MAX_MANIFEST_BYTES + 1),
        b'{"format_version": ' + b"9" * 5000 + b"}",
    ],
    ids=range(9),
)
def test_bytes_that_are_no_manifest_are_refused(text: bytes) -> None:
    with pytest.raises(ManifestError):
        Manifest.from_json(text)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=10), children, max_size=4)
    ),
    max_leaves=10,
)


@settings(max_examples=500)
@given(change=st.dictionaries(st.sampled_from(sorted(DOCUMENT)), JSON, min_size=1, max_size=3))
def test_no_json_value_makes_anything_but_a_manifest_error(change: dict[str, Any]) -> None:
    with contextlib.suppress(ManifestError):
        Manifest.from_json(json.dumps({**DOCUMENT, **change}).encode())


@settings(max_examples=500)
@given(data=st.data())
def test_no_change_of_bytes_makes_anything_but_a_manifest_error(data: st.DataObject) -> None:
    text = bytearray(MANIFEST.to_json())
    start = data.draw(st.integers(0, len(text)))
    text[start : start + data.draw(st.integers(0, 20))] = data.draw(st.binary(max_size=20))
    with contextlib.suppress(ManifestError):
        Manifest.from_json(bytes(text))


def test_positions_are_ordered_by_run_and_then_by_seq() -> None:
    assert Position(2, 9) < Position(3, 1) < Position(3, 2) < Position(10, 1)
    assert str(Position.parse("3.17").next()) == "3.18"


@pytest.mark.parametrize(
    "text", ["", ".", "3", "3.", ".3", "a.b", "3.1.2", "1.0", "\u0663.\u0661", " 3.1", "3.1 ", "+3.1"]
)
def test_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(ManifestError):
        Position.parse(text)


@given(runs=st.integers(1, 2**31 - 1), seq=st.integers(2, 2**31 - 1), has_parent=st.booleans())
def test_identity_survives_its_integers(runs: int, seq: int, has_parent: bool) -> None:
    own = Node(Position(runs, seq), new_state_id())
    parent = Node(Position(runs, seq - 1), new_state_id()) if has_parent else None
    values = encode_identity(own, parent)
    assert all(-(2**63) <= value < 2**63 for value in values)
    assert decode_identity(values) == (own, parent)


@pytest.mark.parametrize(
    "values", [[], [1, 1, 0, 0], [1] * 9, [0, 1, 0, 0, 0, 0, 0, 0], [1, 2, 0, 0, -1, 1, 0, 0]], ids=str
)
def test_integers_that_are_no_identity_are_refused(values: list[int]) -> None:
    with pytest.raises(ManifestError, match="identity"):
        decode_identity(values)
