"""The short plan agrees with the long one, or leaves it to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import HighestStep, Kind, Manifest, Node, Position, plan
from loader.follow.short_plans import plan_straight_line

pytestmark = pytest.mark.I5

SCHEMA = "5" * 64
WHOLE = "7" * 64


def manifest_of(kind: Kind, node: Node, parent: Node | None, schema: str = SCHEMA) -> Manifest:
    return Manifest(
        kind=kind,
        position=node.position,
        state_id=node.state_id,
        parent=parent,
        base=None,
        prefix=f"{kind}-{node.position}",
        step=node.position.seq,
        created_at=0.0,
        schema=schema,
        tables={},
        files=(),
        highest_step=HighestStep(),
    )


@st.composite
def histories(draw: st.DrawFn) -> list[Manifest]:
    """Runs that go on from a node of the one before, with fulls in between, a few commits of which are lost."""
    nodes = [Node(Position(1, 1), f"{1:032x}")]
    manifests = [manifest_of(Kind.FULL, nodes[0], None)]
    for run in range(1, 1 + draw(st.integers(1, 3))):
        tip = nodes[-1] if draw(st.booleans()) else draw(st.sampled_from(nodes))
        for seq in range(2, 2 + draw(st.integers(1, 4))):
            node = Node(Position(run, seq), f"{run * 100 + seq:032x}")
            schema = draw(st.sampled_from([SCHEMA] * 8 + [WHOLE, "6" * 64]))
            if draw(st.integers(0, 3)) == 0:
                manifests.append(manifest_of(Kind.FULL, node, tip, schema))
            manifests.append(manifest_of(Kind.DELTA, node, tip, schema))
            nodes.append(node)
            tip = node
    lost = draw(st.sets(st.integers(0, len(manifests) - 1), max_size=2))
    kept = [manifest for index, manifest in enumerate(manifests) if index not in lost]
    return sorted(kept, key=lambda m: (m.position, m.kind is Kind.DELTA))


@settings(max_examples=300)
@given(histories(), st.data())
def test_agrees_with_the_plan_that_looks_at_everything(
    manifests: list[Manifest], data: st.DataObject
) -> None:
    fitting = [manifest.node for manifest in manifests if manifest.schema in (SCHEMA, WHOLE)]
    if not fitting:
        return
    live = data.draw(st.sampled_from(fitting))
    short = plan_straight_line(live, manifests, schema=SCHEMA, wholes=[WHOLE])
    if short is not None:
        long = plan(live, manifests, schema=SCHEMA, wholes=[WHOLE])
        assert (short.steps, short.problem) == (long.steps, None)
        assert long.problem is None


def test_line_of_deltas_with_a_full_is_short() -> None:
    first, second, third = (Node(Position(1, seq), f"{seq:032x}") for seq in (1, 2, 3))
    manifests = [
        manifest_of(Kind.FULL, first, None),
        manifest_of(Kind.DELTA, second, first),
        manifest_of(Kind.FULL, third, second),
        manifest_of(Kind.DELTA, third, second),
    ]
    found = plan_straight_line(first, manifests, schema=SCHEMA)
    assert found is not None
    assert found == plan(first, manifests, schema=SCHEMA)
    assert len(found.steps) == 2


def test_full_without_its_closing_delta_is_left_to_the_long_plan() -> None:
    first, second = (Node(Position(1, seq), f"{seq:032x}") for seq in (1, 2))
    manifests = [manifest_of(Kind.FULL, first, None), manifest_of(Kind.FULL, second, first)]
    assert plan_straight_line(first, manifests, schema=SCHEMA) is None
