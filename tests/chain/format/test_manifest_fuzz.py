"""Whatever the bytes of a manifest are, reading it gives a manifest or a ManifestError, and nothing else."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotdelta.chain import Manifest
from hotdelta.chain.format import names
from hotdelta.errors import ManifestError
from tests.chain.manifests import delta

pytestmark = pytest.mark.I4

GOOD: dict[str, Any] = json.loads(delta("1.2", "1.1").to_json())
MOST_BYTES_PER_BYTE = 50
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.just("1.1"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
TABLE = st.fixed_dictionaries(
    {},
    optional={
        "shape": ANYTHING | st.lists(st.integers(-1, 2**70), max_size=40),
        "dtype": ANYTHING,
        "tracking": ANYTHING | st.just("touched"),
        "rows_changed": ANYTHING,
        "rows_deleted": ANYTHING,
        "part_rows": ANYTHING,
        "strategy": ANYTHING,
    },
)


def read(text: bytes) -> Manifest | None:
    try:
        return Manifest.from_json(text)
    except ManifestError:
        return None


@given(st.binary(max_size=4096))
def test_any_bytes(text: bytes) -> None:
    assert read(text) is None


@given(ANYTHING)
def test_any_json(document: Any) -> None:
    assert read(json.dumps(document).encode()) is None


@given(st.sampled_from(sorted(GOOD)), ANYTHING)
def test_any_value_of_a_field(name: str, value: Any) -> None:
    read(json.dumps({**GOOD, name: value}).encode())


@given(st.dictionaries(st.text(max_size=20), TABLE, max_size=3))
def test_any_tables(tables: dict[str, Any]) -> None:
    read(json.dumps({**GOOD, "tables": tables}).encode())


@given(st.data())
def test_a_good_manifest_with_bytes_changed(data: st.DataObject) -> None:
    text = bytearray(json.dumps(GOOD).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    found = read(bytes(text))
    if found is not None:
        assert read(found.to_json()) == found
        for file in found.files:
            assert "/" not in file.name
            assert not file.name.startswith(".")
            assert file.role in (names.ROLE_INDEX, names.ROLE_SERVING, names.ROLE_TRAINING)


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b" " * (5 * 2**20),
        json.dumps({**GOOD, "step": 10**4000}).encode(),
        json.dumps({**GOOD, "files": [GOOD["files"][0]] * 3000}).encode(),
        json.dumps({**GOOD, "tables": {str(key): {"shape": [2**62] * 8} for key in range(5000)}}).encode(),
        json.dumps({**GOOD, "prefix": "x" * 500_000}).encode(),
    ],
    ids=["lists", "objects", "spaces", "digits", "files", "tables", "name"],
)
def test_deep_and_long_documents_are_refused_without_much_memory(text: bytes) -> None:
    tracemalloc.start()
    try:
        assert read(text) is None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < MOST_BYTES_PER_BYTE * len(text), f"{peak / len(text):.0f} bytes for each byte"
