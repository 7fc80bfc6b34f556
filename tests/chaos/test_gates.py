"""For each gate: what it keeps out, and that the same gets through, or further, when the gate is switched off."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotdelta.chain import Manifest, Schema
from loader import Checks, SanityLimits, SanitySettings
from loader.commit_files import VerifiedFiles, stamp_files, verify_files
from loader.sanity_gate import SanityGate
from loader.updater import Observed
from tests.chaos.conftest import Prepared
from tests.chaos.hostile import declare, publish, rewrite
from tests.chaos.rig import BEFORE, NEXT, Rig, rig
from tests.loader.step_model import answer

ROWS = np.full((3, 4), 77.0, np.float32)
NO_LIMITS = SanityLimits(
    is_nonfinite_allowed=True, max_abs=math.inf, outlier_factor=math.inf, max_deleted_share=1.0
)


class Careless(VerifiedFiles):
    """Does not look whether the files are still those that were verified."""

    def require_unchanged(self) -> None:
        return


def unverified(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
    return VerifiedFiles(run_dir, manifest, stamp_files(run_dir, manifest))


def no_layout(_prefix: Path, _manifest: Manifest, _schema: Schema) -> None:
    return


@dataclass(frozen=True)
class Outcome:
    """What was served after the fault, and what the loader said of it."""

    rig: Rig
    outputs: dict[str, Any]

    @property
    def observed(self) -> Observed:
        return self.rig.loader._updater.observed

    def require_before(self) -> None:
        found = {name: value.tobytes() for name, value in self.outputs.items()}
        assert found == self.rig.states[BEFORE]


def served_after(prepared: Prepared, spoil: Callable[[Rig], None], checks: Checks | None = None) -> Outcome:
    """Goes back to BEFORE, spoils the delta that leads to NEXT, and looks."""
    with rig(*prepared, checks=checks) as ready:
        ready.look()
        ready.go_back(BEFORE)
        spoil(ready)
        ready.look()
        return Outcome(ready, answer(ready.loader)[0])


def is_kept_out(prepared: Prepared, spoil: Callable[[Rig], None]) -> str:
    """Asserts that BEFORE is served bit for bit; the reason that is told."""
    outcome = served_after(prepared, spoil)
    outcome.require_before()
    listed = [item.reason for item in outcome.observed.quarantined if item.node.position == NEXT]
    assert listed
    return listed[0]


def spoil_values(value: float) -> Callable[[Rig], None]:
    def spoil(ready: Rig) -> None:
        rows = np.full((3, 4), value, np.float32)
        publish(ready.run_dir, rewrite(ready.run_dir, ready.commit(NEXT), users__rows=rows))

    return spoil


def spoil_files_only(ready: Rig) -> None:
    """Other files that are whole in themselves; only the manifest knows that they are not the right ones."""
    rewrite(ready.run_dir, ready.commit(NEXT), users__rows=ROWS)


def test_digests(until_next: Prepared) -> None:
    assert "manifest says" in is_kept_out(until_next, spoil_files_only)


def test_without_digests_other_files_are_served(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_files_only, Checks(files=unverified))
    assert (outcome.outputs["users"][[2, 9, 33]] == ROWS).all()


def replaced_after(files: type[VerifiedFiles]) -> Callable[[Path, Manifest], VerifiedFiles]:
    """Verifies, and has the files replaced right afterwards."""

    def verify_then_replace(run_dir: Path, manifest: Manifest) -> VerifiedFiles:
        verified = verify_files(run_dir, manifest)
        if manifest.position == NEXT:
            rewrite(run_dir, manifest, users__rows=ROWS)
        return files(run_dir, manifest, verified.stamps)

    return verify_then_replace


def test_files_that_are_replaced_after_they_were_verified(until_next: Prepared) -> None:
    root, states = until_next
    with rig(root, states, checks=Checks(files=replaced_after(VerifiedFiles))) as ready:
        ready.look()
        ready.require_truth(BEFORE)
        assert ready.loader.status().reason


def test_without_the_second_look_replaced_files_are_served(until_next: Prepared) -> None:
    root, states = until_next
    with rig(root, states, checks=Checks(files=replaced_after(Careless))) as ready:
        ready.look()
        assert (answer(ready.loader)[0]["users"][[2, 9, 33]] == ROWS).all()


def spoil_shape(ready: Rig) -> None:
    """Sixteen gigabytes of rows, says the index, and digest and checksum are right."""
    publish(ready.run_dir, declare(ready.run_dir, ready.commit(NEXT), "users-rows", (2**30, 4)))


def test_declared_shapes_are_refused_before_anything_is_allocated(until_next: Prepared) -> None:
    assert "does not fit the model" in is_kept_out(until_next, spoil_shape)


def test_without_the_layout_gate_declared_shapes_get_as_far_as_tensorflow(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_shape, Checks(layout=no_layout))
    reasons = [item.reason for item in outcome.observed.quarantined]
    assert any("stage_incremental" in reason for reason in reasons), reasons


def spoil_name(ready: Rig) -> None:
    """A manifest that gives the state another identity than its files have."""
    manifest = ready.commit(NEXT)
    publish(ready.run_dir, replace(manifest, step=manifest.step + 1))


def test_a_manifest_that_misnames_its_files(until_next: Prepared) -> None:
    assert "of step" in is_kept_out(until_next, spoil_name)


def test_without_the_layout_gate_a_misnamed_state_is_served(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_name, Checks(layout=no_layout))
    assert outcome.observed.quarantined == ()


@pytest.mark.parametrize(
    "value, reason", [(math.nan, "NaN"), (math.inf, "NaN or inf"), (1e38, "larger than")]
)
def test_values(until_next: Prepared, value: float, reason: str) -> None:
    assert reason in is_kept_out(until_next, spoil_values(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_without_the_sanity_gate_bad_values_are_served(until_next: Prepared, value: float) -> None:
    checks = Checks(values=SanityGate(SanitySettings(NO_LIMITS, NO_LIMITS)))
    outcome = served_after(until_next, spoil_values(value), checks)
    np.testing.assert_array_equal(outcome.outputs["users"][9], np.full(4, value, np.float32))


@pytest.mark.parametrize(
    "ids", [[2, 9, 64], [2, 9, -1], [2, 9, 9], [2, 9, 2**40]], ids=["above", "below", "twice", "far above"]
)
def test_row_ids(until_next: Prepared, ids: list[int]) -> None:
    """Checked in the graph, with every other gate open: there is no way to switch that off."""

    def spoil(ready: Rig) -> None:
        bad = np.array(ids, np.int64)
        publish(ready.run_dir, rewrite(ready.run_dir, ready.commit(NEXT), users__ids=bad))

    assert is_kept_out(until_next, spoil)


def spoil_parent(ready: Rig) -> None:
    """A delta that says that it follows another state than the one it was made from."""
    manifest = ready.commit(NEXT)
    other = replace(manifest, parent=replace(ready.commit(BEFORE).node, state_id="0" * 32))
    publish(ready.run_dir, other)


def test_lineage(until_next: Prepared) -> None:
    outcome = served_after(until_next, spoil_parent)
    outcome.require_before()


def link_out(ready: Rig) -> None:
    """The data file is a symbolic link to a copy outside the directory."""
    path = ready.paths(NEXT)[0]
    path.rename(ready.root / "outside")
    path.symlink_to(ready.root / "outside")


def test_links_out_of_the_directory(until_next: Prepared) -> None:
    outcome = served_after(until_next, link_out)
    outcome.require_before()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "a/b", "..", ".hidden", "a\\x00b", "x" * 300])
def test_names_that_lead_out_of_the_directory(until_next: Prepared, name: str) -> None:
    def spoil(ready: Rig) -> None:
        path = ready.paths(NEXT)[-1]
        text = path.read_text()
        file = ready.commit(NEXT).files[0].name
        path.write_text(text.replace(f'"{file}"', f'"{name}"'))

    outcome = served_after(until_next, spoil)
    outcome.require_before()
    (refused,) = outcome.observed.refused
    assert "manifest" in refused.reason
