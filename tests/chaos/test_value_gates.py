"""What is checked of the values of a delta: what each limit keeps out, and that it gets through without the limit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from loader import Checks, SanityLimits, SanitySettings
from loader.checks.sanity_gate import SanityGate
from tests.chaos.conftest import Prepared
from tests.chaos.hostile import publish, rewrite
from tests.chaos.rig import NEXT, Rig
from tests.chaos.spoiled_delta import Spoil, gets_through, is_kept_out

pytestmark = pytest.mark.I4

NO_LIMITS = SanityLimits(
    is_nonfinite_allowed=True, max_abs=math.inf, outlier_factor=math.inf, max_deleted_share=1.0
)


def limited(limits: SanityLimits) -> Checks:
    return Checks(values=SanityGate(SanitySettings(limits, limits)))


def spoil_values(value: float) -> Spoil:
    def spoil(ready: Rig) -> None:
        rows = np.full((3, 4), value, np.float32)
        publish(ready.run_dir, rewrite(ready.run_dir, ready.commit(NEXT), users__rows=rows))

    return spoil


@pytest.mark.parametrize(
    "value, reason", [(math.nan, "NaN"), (math.inf, "NaN or inf"), (1e38, "larger than")]
)
def test_values(until_next: Prepared, value: float, reason: str) -> None:
    assert reason in is_kept_out(until_next, spoil_values(value))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_without_limits_bad_values_are_served(until_next: Prepared, value: float) -> None:
    outcome = gets_through(until_next, spoil_values(value), limited(NO_LIMITS))
    np.testing.assert_array_equal(outcome.outputs["users"][9], np.full(4, value, np.float32))


def spoil_nothing(_ready: Rig) -> None:
    return


def test_the_share_of_touched_rows(until_next: Prepared) -> None:
    limits = {"users": {"max_touched_share": 2.9 / 64}}
    checks = Checks(values=SanityGate(SanitySettings(by_key=limits)))
    assert "4.7% of its rows are touched" in is_kept_out(until_next, spoil_nothing, checks)


def test_without_a_limit_any_share_of_rows_may_be_touched(until_next: Prepared) -> None:
    gets_through(until_next, spoil_nothing)


def spoil_deletions(ready: Rig) -> None:
    """A delta that says that it deletes most of a table."""
    manifest = ready.commit(NEXT)
    users = replace(manifest.tables["users"], rows_deleted=40)
    publish(ready.run_dir, replace(manifest, tables={**manifest.tables, "users": users}))


def test_the_share_of_deleted_rows(until_next: Prepared) -> None:
    assert "62.5% of its keys are deleted" in is_kept_out(until_next, spoil_deletions)


def test_without_a_limit_any_share_of_rows_may_be_deleted(until_next: Prepared) -> None:
    gets_through(until_next, spoil_deletions, limited(NO_LIMITS))
