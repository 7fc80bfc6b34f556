from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import KeyTable, Schema, SignatureSpec, TensorSpec, VariableSpec
from hotdelta.errors import ManifestError
from tests.chain.format.test_manifest import JSON

SCHEMA = Schema(
    variables=(VariableSpec("emb", (10, 4), "float32", True), VariableSpec("bias", (), "float32", False)),
    signatures={"serving_default": SignatureSpec((TensorSpec("ids", (None, 4), "int64"),), ())},
    vocabularies={"lookup": "d" * 64},
)


def test_schema_survives_its_json_and_digest_tells_schemas_apart() -> None:
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    other = Schema(SCHEMA.variables[:1], SCHEMA.signatures, SCHEMA.vocabularies)
    assert other.digest != SCHEMA.digest


def test_digest_of_a_schema_without_key_tables_is_what_it_always_was() -> None:
    assert SCHEMA.digest == "4eeb693061a45f226fa416fb3dac3bcbd8426b4e041b7fc7dabf02c1515d742e"


USERS = KeyTable("users/rows", "users/index", "users/counts")
WITH_KEYS = replace(
    SCHEMA,
    variables=(
        *SCHEMA.variables,
        VariableSpec("users/rows", (1000, 4), "float32", True),
        VariableSpec("users/index", (64, 16), "int64", True),
        VariableSpec("users/counts", (3,), "int64", False),
    ),
    key_tables=(USERS,),
)


def test_schema_with_key_tables_survives_its_json_and_has_a_digest_of_its_own() -> None:
    assert Schema.from_json(WITH_KEYS.to_json()) == WITH_KEYS
    assert WITH_KEYS.digest != replace(WITH_KEYS, key_tables=()).digest


def test_rows_and_index_of_a_key_table_grow_and_nothing_else_does() -> None:
    assert WITH_KEYS.growing == {"users/rows", "users/index"}
    assert SCHEMA.growing == frozenset()


def test_part_of_a_schema_may_leave_a_key_table_out() -> None:
    assert SCHEMA.why_not_part_of(WITH_KEYS) == ""
    assert WITH_KEYS.why_not_part_of(WITH_KEYS) == ""


@pytest.mark.parametrize(
    "ours, chains", [((USERS,), ()), ((), (USERS,)), ((USERS,), (replace(USERS, counts="bias"),))], ids=str
)
def test_part_with_other_key_tables_of_the_same_variables_is_refused(
    ours: tuple[KeyTable, ...], chains: tuple[KeyTable, ...]
) -> None:
    part, whole = replace(WITH_KEYS, key_tables=ours), replace(WITH_KEYS, key_tables=chains)
    assert "users/rows" in part.why_not_part_of(whole)


@pytest.mark.parametrize(
    "tables",
    [
        [{"rows": "users/rows", "index": "users/index"}],
        [{"rows": "none", "index": "users/index", "counts": "users/counts"}],
        [{"rows": "users/rows", "index": "users/index", "counts": "users/index"}],
        [{"rows": ["users/rows"], "index": "users/index", "counts": "users/counts"}],
        {"rows": "users/rows"},
        7,
        None,
    ],
    ids=str,
)
def test_key_table_that_is_not_made_of_the_variables_is_refused(tables: object) -> None:
    with pytest.raises(ManifestError):
        Schema.from_json(json.dumps({**json.loads(WITH_KEYS.to_json()), "key_tables": tables}).encode())


@settings(max_examples=300)
@given(
    change=st.dictionaries(
        st.sampled_from(["variables", "signatures", "vocabularies", "key_tables"]), JSON, min_size=1
    )
)
def test_malformed_schema_is_a_manifest_error(change: dict[str, Any]) -> None:
    with contextlib.suppress(ManifestError):
        Schema.from_json(json.dumps({**json.loads(SCHEMA.to_json()), **change}).encode())


@pytest.mark.parametrize(
    "spec",
    [
        VariableSpec("users/rows", (1000, 4), "float32", False),
        VariableSpec("users/index", (64, 16), "int32", True),
        VariableSpec("users/index", (64, 8), "int64", True),
        VariableSpec("users/index", (64, 16), "int64", False),
        VariableSpec("users/counts", (4,), "int64", False),
        VariableSpec("users/counts", (3,), "float32", False),
        VariableSpec("users/counts", (3,), "int64", True),
    ],
    ids=str,
)
def test_key_table_of_variables_that_cannot_be_one_is_refused(spec: VariableSpec) -> None:
    variables = tuple(spec if found.key == spec.key else found for found in WITH_KEYS.variables)
    with pytest.raises(ManifestError, match="is not"):
        Schema.from_json(replace(WITH_KEYS, variables=variables).to_json())
