"""What is checked of the files of a delta: what each gate keeps out, and that it gets through without the gate."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
import pytest

from hotdelta.chain import Manifest, Node, Plan
from hotdelta.chain.history import verification
from loader import Checks
from loader.files.delta_in_memory import DeltaFiles
from loader.follow import chain_view
from loader.follow.short_plans import plan_straight_line
from tests.chaos.conftest import Prepared
from tests.chaos.hostile import declare, publish, rewrite
from tests.chaos.rig import NEXT, Rig, rig
from tests.chaos.spoiled_delta import IDS, ROWS, Spoil, gets_through, is_kept_out, served_after

pytestmark = pytest.mark.I4


def no_gate(*_: object) -> None:
    return


def spoil_files_only(ready: Rig) -> None:
    """Other files of the same sizes that are whole in themselves; only the manifest knows that they are wrong."""
    manifest = rewrite(ready.run_dir, ready.commit(NEXT))
    publish(ready.run_dir, manifest)
    rewrite(ready.run_dir, manifest, users__rows=ROWS)


def spoil_size(ready: Rig) -> None:
    """A data file with something at its end that nobody asked for."""
    with ready.paths(NEXT)[0].open("ab") as file:
        file.write(b"more")


def test_digests(until_next: Prepared) -> None:
    assert "digest that its manifest says" in is_kept_out(until_next, spoil_files_only)


def test_without_digests_other_files_are_served(until_next: Prepared) -> None:
    outcome = gets_through(until_next, spoil_files_only, Checks(digests=no_gate))
    assert (outcome.outputs["users"][IDS] == ROWS).all()


def test_sizes(until_next: Prepared) -> None:
    assert "bytes, its manifest says" in is_kept_out(until_next, spoil_size)


def test_without_sizes_a_longer_file_is_served(until_next: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "_require_size", no_gate)
    gets_through(until_next, spoil_size)


def test_a_delta_whose_files_are_replaced_after_they_were_verified_is_what_was_verified(
    until_next: Prepared,
) -> None:
    def verify_then_replace(delta: DeltaFiles) -> None:
        delta.require_digests()
        rewrite(until_next[0] / "run", delta.manifest, users__rows=ROWS)

    with rig(*until_next, checks=Checks(digests=verify_then_replace)) as ready:
        ready.look()
        ready.require_truth(NEXT)


def spoil_shape(ready: Rig) -> None:
    """Sixteen gigabytes of rows, says the index, and digest and checksum are right."""
    publish(ready.run_dir, declare(ready.run_dir, ready.commit(NEXT), "users-rows", (2**30, 4)))


def spoil_dtype(ready: Rig) -> None:
    """Rows of twice the width, and digest and checksum are right."""
    publish(ready.run_dir, rewrite(ready.run_dir, ready.commit(NEXT), users__rows=ROWS.astype(np.float64)))


@pytest.mark.parametrize("spoil", [spoil_shape, spoil_dtype])
def test_shapes_and_dtypes_are_refused_before_anything_is_allocated(
    until_next: Prepared, spoil: Spoil
) -> None:
    assert "does not fit the model" in is_kept_out(until_next, spoil)


@pytest.mark.parametrize(
    "spoil, reason",
    [(spoil_shape, "has 48 bytes of 'users-rows', which is not"), (spoil_dtype, "stage_rows failed")],
)
def test_without_the_layout_gate_shapes_and_dtypes_get_further(
    until_next: Prepared, spoil: Spoil, reason: str
) -> None:
    """As far as the memory that is read into, and as far as TensorFlow."""
    assert reason in is_kept_out(until_next, spoil, Checks(layout=no_gate))


def spoil_name(ready: Rig) -> None:
    """A manifest that gives the state another identity than its files have."""
    manifest = ready.commit(NEXT)
    publish(ready.run_dir, replace(manifest, step=manifest.step + 1))


def test_a_manifest_that_misnames_its_files(until_next: Prepared) -> None:
    assert "of step" in is_kept_out(until_next, spoil_name)


def test_without_the_layout_gate_a_misnamed_state_is_served(until_next: Prepared) -> None:
    gets_through(until_next, spoil_name, Checks(layout=no_gate))


def spoil_schema(ready: Rig) -> None:
    """A delta of a model that is built otherwise, and whose tensors happen to fit."""
    publish(ready.run_dir, replace(ready.commit(NEXT), schema="f" * 64))


def test_schemas(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_schema)
    outcome.require_before()
    assert "schema" in outcome.observed.condition.reason


def test_without_the_schema_gate_the_delta_of_another_model_is_served(
    until_next: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan_any_schema(
        live: Node, manifests: Sequence[Manifest], *, schema: str, wholes: Container[str]
    ) -> Plan | None:
        relabelled = [replace(manifest, schema=schema) for manifest in manifests]
        return plan_straight_line(live, relabelled, schema=schema, wholes=wholes)

    monkeypatch.setattr(chain_view, "plan_straight_line", plan_any_schema)
    gets_through(until_next, spoil_schema)
