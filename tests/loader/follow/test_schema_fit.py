"""A chain goes on when the model changes: an export follows its own schema, and every one that it is a part of."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import (
    ApplyDelta,
    Kind,
    Manifest,
    Plan,
    Position,
    Schema,
    SignatureSpec,
    VariableSpec,
    directory_of,
)
from hotdelta.chain.format import names
from hotdelta.chain.format.schema import TensorSpec
from hotdelta.export_metadata import ExportMetadata
from loader.follow.broken_links import BrokenLinks
from loader.follow.chain_view import ChainView
from tests.chain.history.test_plan import describe
from tests.chain.manifests import delta, full, node


def schema_of(output: str, **vocabularies: str) -> Schema:
    inputs, outputs = TensorSpec("ids", (None,), "int64"), TensorSpec(output, (None, 2), "float32")
    users = VariableSpec("users", (10, 2), "float32", is_table=True)
    return Schema((users,), {"serving_default": SignatureSpec((inputs,), (outputs,))}, vocabularies)


A = schema_of("out")
B = schema_of("score")  # Only the output has another name.
WITH_RULE = schema_of("score", words="a digest")
# The trainer was started again at 1.4 with another output.
CONTINUED = [
    full("1.1", schema=A.digest),
    *(delta(f"1.{seq}", f"1.{seq - 1}", schema=A.digest) for seq in (2, 3, 4)),
    delta("2.1", "1.4", schema=B.digest),
    delta("2.2", "2.1", schema=B.digest),
]
FULL_OF_B = full("2.2", "2.1", schema=B.digest)


def export_of(schema: Schema) -> ExportMetadata:
    return ExportMetadata("model", schema, True, schema.signatures, node("1.1"), 1)


def view(run_dir: Path, manifests: list[Manifest], *schemas: Schema) -> ChainView:
    for kind in Kind:
        directory_of(run_dir, kind).mkdir(parents=True, exist_ok=True)
    for schema in schemas:
        (directory_of(run_dir, Kind.DELTA) / names.schema_name(schema.digest)).write_bytes(schema.to_json())
    for manifest in manifests:
        path = directory_of(run_dir, manifest.kind) / names.manifest_name(manifest.prefix)
        path.write_bytes(manifest.to_json())
    broken = BrokenLinks(run_dir, late_seconds=0, clock=lambda: 0.0)
    chain = ChainView(run_dir, broken=broken, wall_clock=lambda: 0.0)
    chain.look()
    return chain


@pytest.mark.parametrize("live", [None, "1.1", "1.3", "1.4", "2.1"])
@pytest.mark.parametrize("more", [[], [FULL_OF_B]], ids=["deltas", "full of the newer schema"])
def test_an_export_goes_on_by_its_own_schema_and_the_one_that_followed(
    tmp_path: Path, live: str | None, more: list[Manifest]
) -> None:
    chain = view(tmp_path, CONTINUED + more, A, B)
    found = chain.plan_from(node(live) if live else None, export_of(A))
    assert (found.target, found.problem) == (node("2.2"), None)
    if live is not None:
        # Deltas from the live state, as when there is one schema.
        assert all(isinstance(step, ApplyDelta) for step in found.steps)


@pytest.mark.parametrize(
    "live, pin, expected",
    [
        ("1.1", "1.3", "delta 1.2, delta 1.3"),
        ("1.1", "2.1", "delta 1.2, delta 1.3, delta 1.4, delta 2.1"),
        ("2.2", "1.3", "full 1.1, delta 1.2, delta 1.3"),
    ],
)
def test_a_pin_at_either_schema_is_reached(tmp_path: Path, live: str, pin: str, expected: str) -> None:
    chain = view(tmp_path, [*CONTINUED, FULL_OF_B], A, B)
    chain.orders.hold(Position.parse(pin), bad=frozenset())
    found = chain.plan_from(node(live), export_of(A))
    assert (describe(found), found.problem) == (expected, None)


def test_a_part_that_does_not_fit_the_newest_goes_on_as_far_as_it_fits(tmp_path: Path) -> None:
    other = replace(A, variables=())
    chain = view(tmp_path, [*CONTINUED, delta("3.1", "2.2", schema=other.digest)], A, B, other)
    found = chain.plan_from(node("1.3"), export_of(A))
    assert describe(found) == "delta 1.4, delta 2.1, delta 2.2"
    assert f"is {A.digest[:12]}: 'users' is missing in the chain" in str(found.problem)


def test_a_schema_that_cannot_be_read_yet_is_read_when_it_comes(tmp_path: Path) -> None:
    chain = view(tmp_path, CONTINUED, A)
    found = chain.plan_from(node("1.1"), export_of(A))
    assert describe(found) == "delta 1.2, delta 1.3, delta 1.4"
    assert f"{names.schema_name(B.digest)}, which would tell more, cannot be read" in str(found.problem)
    view(tmp_path, [], B)
    assert chain.plan_from(node("1.1"), export_of(A)).target == node("2.2")


def test_what_one_export_is_told_is_not_said_of_another(tmp_path: Path) -> None:
    """Export A follows the schema with a rule; an export with that rule must not follow a chain without it."""
    manifests = [*CONTINUED[:4], delta("2.1", "1.4", schema=WITH_RULE.digest)]
    chain = view(tmp_path, manifests, A, WITH_RULE)
    assert chain.plan_from(node("1.1"), export_of(A)).target == node("2.1")
    found = chain.plan_from(node("1.1"), export_of(WITH_RULE))
    assert found.steps == ()
    assert str(found.problem).endswith(
        "'words'. export the new model and load it, or train into another directory"
    )


def test_following_another_schema_is_said_once_for_each_export(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    chain = view(tmp_path, CONTINUED, A, B)

    def follow(found: Plan, metadata: ExportMetadata) -> int:
        for step in found.steps:
            assert isinstance(step, ApplyDelta)
            chain.report_used(step.manifest, metadata)
        return sum("export follows another schema as a part of it" in line for line in caplog.messages)

    first, second = export_of(A), replace(export_of(A), step=2)
    assert follow(chain.plan_from(node("1.1"), first), first) == 1
    assert follow(chain.plan_from(node("2.1"), first), first) == 1
    assert follow(chain.plan_from(node("1.1"), second), second) == 2
