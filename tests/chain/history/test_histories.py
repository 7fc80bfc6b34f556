"""Random histories: saves, fulls, restarts at the tip and behind it, retention, holes. The rows must be right."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import (
    ApplyDelta,
    Kind,
    Manifest,
    Node,
    Position,
    RestoreFull,
    UndoTo,
    expired,
    new_state_id,
    plan,
)
from tests.chain.manifests import delta, full

pytestmark = pytest.mark.I1

Rows = dict[int, int]


@dataclass
class History:
    """What a trainer saved, without files: the manifests that are left, and what each commit ever held."""

    manifests: list[Manifest] = field(default_factory=list)
    changes: dict[Node, Rows] = field(default_factory=dict)
    states: dict[Node, Rows] = field(default_factory=dict)
    tip: Node | None = None
    run: int = 1
    seq: int = 0

    def save(self, changes: Rows, *, with_full: bool) -> None:
        self.seq += 1
        node = Node(Position(self.run, self.seq), new_state_id())
        if self.tip is not None:
            self.manifests.append(delta(node, self.tip))
        if with_full or self.tip is None:
            self.manifests.append(full(node, self.tip))
        self.changes[node] = changes
        self.states[node] = {**(self.states[self.tip] if self.tip else {}), **changes}
        self.tip = node

    def restart(self, choice: int) -> None:
        """A new run goes on from a state that can still be restored."""
        reachable = [n for n in self.states if plan(None, self.up_to(n)).target == n]
        self.tip = reachable[choice % len(reachable)] if reachable else None
        self.run += 1
        self.seq = 0

    def up_to(self, node: Node) -> list[Manifest]:
        return [m for m in self.manifests if m.position <= node.position]

    def retain(self, keep_fulls: int) -> None:
        gone = expired(self.manifests, keep_fulls=keep_fulls)
        self.manifests = [m for m in self.manifests if m not in gone]

    def apply(self, live: Node | None, manifests: list[Manifest], undoable: list[Node]) -> Node | None:
        """Follows the plan with rows, and checks that each step fits and ends at what was saved there."""
        found = plan(live, manifests, undoable=undoable)
        rows = dict(self.states[live]) if live else {}
        at = live
        for step in found.steps:
            match step:
                case ApplyDelta(manifest):
                    assert manifest.parent == at
                    assert manifest.kind is Kind.DELTA
                    rows.update(self.changes[manifest.node])
                    at = manifest.node
                case RestoreFull(manifest):
                    assert manifest.kind is Kind.FULL
                    rows = dict(self.states[manifest.node])
                    at = manifest.node
                case UndoTo(node):
                    assert node in undoable
                    rows = dict(self.states[node])
                    at = node
        assert at == (found.target or live)
        assert at is None or rows == self.states[at]
        return at


ROWS = st.dictionaries(st.integers(0, 4), st.integers(0, 99), max_size=3)
ACTIONS = st.one_of(
    st.tuples(st.just("save"), ROWS, st.booleans()),
    st.tuples(st.just("restart"), st.integers(0, 50)),
    st.tuples(st.just("retain"), st.integers(1, 3)),
)


def play(actions: list[tuple[object, ...]]) -> History:
    history = History()
    history.save({0: 0}, with_full=True)
    for action in actions:
        match action:
            case ("save", dict() as rows, bool() as with_full):
                history.save(rows, with_full=with_full)
            case ("restart", int() as choice):
                history.restart(choice)
                history.save({0: choice}, with_full=False)
            case ("retain", int() as keep_fulls):
                history.retain(keep_fulls)
            case _:
                raise AssertionError(action)
    return history


@settings(max_examples=300)
@given(actions=st.lists(ACTIONS, max_size=25), undo_depth=st.integers(0, 5))
def test_from_every_state_the_plan_reaches_the_tip_with_the_right_rows(
    actions: list[tuple[object, ...]], undo_depth: int
) -> None:
    history = play(actions)
    for live in [None, *history.states]:
        ancestors = find_ancestors(history, live)[:undo_depth]
        assert history.apply(live, history.manifests, ancestors) == history.tip
        assert plan(live, history.manifests, undoable=ancestors).problem is None


@settings(max_examples=300)
@given(actions=st.lists(ACTIONS, max_size=20), lost=st.sets(st.integers(0, 40)), undo_depth=st.integers(0, 3))
def test_with_manifests_lost_the_plan_still_goes_forward_to_saved_states_only(
    actions: list[tuple[object, ...]], lost: set[int], undo_depth: int
) -> None:
    history = play(actions)
    left = [m for number, m in enumerate(history.manifests) if number not in lost]
    for live in history.states:
        history.apply(live, left, find_ancestors(history, live)[:undo_depth])
        found = plan(live, left)
        newest = max((m.position for m in left), default=None)
        reached = found.target or live
        assert (found.problem is None) == (newest is None or reached.position == newest)
        if found.target is not None and any(m.node == live for m in left):
            assert found.target.position > live.position


@settings(max_examples=200)
@given(actions=st.lists(ACTIONS, max_size=25), keep_fulls=st.integers(1, 3))
def test_readers_reach_the_tip_after_each_single_deletion(
    actions: list[tuple[object, ...]], keep_fulls: int
) -> None:
    history = play(actions)
    left = list(history.manifests)
    for gone in expired(history.manifests, keep_fulls=keep_fulls):
        left.remove(gone)
        assert history.apply(None, left, []) == history.tip


def find_ancestors(history: History, node: Node | None) -> list[Node]:
    """The states before a state, the nearest first, as far as manifests are left to tell."""
    parents = {m.node: m.parent for m in history.manifests if m.parent is not None}
    ancestors = []
    while node is not None and (node := parents.get(node)) is not None:
        ancestors.append(node)
    return ancestors
