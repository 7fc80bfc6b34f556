"""Random lives of a directory on a real disk: saves, crashes after any call, restarts, forks, retention."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotdelta.chain import Kind, Node, Scanner
from tests.chain.disks import Crash, CrashingDisk, PoweredDisk
from tests.chain.model_trainer import ModelServer, ModelTrainer, Rows

pytestmark = [pytest.mark.I3, pytest.mark.I6]

CALLS_OF_A_SAVE = 40


class World:
    """A directory, the trainer of the moment, and servers that started at different times and follow it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.states: dict[Node, Rows] = {}
        self.servers = [ModelServer(run_dir)]
        self.trainer = self.start(None)

    def start(self, resume_at: Node | None) -> ModelTrainer:
        trainer = ModelTrainer(self.run_dir, PoweredDisk())
        trainer.open(resume_at)
        assert trainer.tip is None or trainer.rows == self.states[trainer.tip]
        self.trainer = trainer
        self.save({0: len(self.states)}, Kind.DELTA if trainer.tip else Kind.FULL)
        return trainer

    def save(self, changes: Rows, *kinds: Kind) -> None:
        self.trainer.save(changes, *kinds)
        assert self.trainer.tip is not None
        self.states[self.trainer.tip] = dict(self.trainer.rows)

    def crash(self, changes: Rows, crash_at: int, *kinds: Kind) -> None:
        """The trainer dies in a save. What was visible then, and only then, is a state."""
        self.trainer.disk = CrashingDisk(crash_at)
        old = self.trainer.rows
        with contextlib.suppress(Crash):
            self.trainer.save(changes, *kinds)
        for manifest in Scanner(self.run_dir).scan().manifests:
            self.states.setdefault(manifest.node, {**old, **changes})
        self.check_servers()
        self.trainer.close()
        self.start(None)

    def fork(self, choice: int) -> None:
        self.trainer.close()
        nodes = sorted({m.node for m in Scanner(self.run_dir).scan().manifests}, key=lambda n: n.position)
        self.start(nodes[choice % len(nodes)])

    def check_servers(self) -> None:
        """Whatever a server shows is a state that was saved."""
        for server in self.servers:
            server.follow()
            assert server.live is not None
            assert server.rows == self.states[server.live]


ROWS = st.dictionaries(st.integers(0, 3), st.integers(0, 99), max_size=2)
KINDS = st.sampled_from([(Kind.DELTA,), (Kind.DELTA, Kind.FULL)])
ACTIONS = st.one_of(
    st.tuples(st.just("save"), ROWS, KINDS),
    st.tuples(st.just("crash"), ROWS, KINDS, st.integers(1, CALLS_OF_A_SAVE)),
    st.tuples(st.just("fork"), st.integers(0, 20)),
    st.tuples(st.just("retain"), st.integers(1, 2)),
    st.just(("newcomer",)),
    st.just(("follow",)),
)


def act(world: World, action: tuple[object, ...]) -> None:
    match action:
        case ("save", dict() as rows, tuple() as kinds):
            world.save(rows, *kinds)
        case ("crash", dict() as rows, tuple() as kinds, int() as crash_at):
            world.crash(rows, crash_at, *kinds)
        case ("fork", int() as choice):
            world.fork(choice)
        case ("retain", int() as keep_fulls):
            world.trainer.retain(keep_fulls)
        case ("newcomer",):
            world.servers.append(ModelServer(world.run_dir))
        case _:
            world.check_servers()


@settings(max_examples=60)
@given(actions=st.lists(ACTIONS, max_size=12))
def test_servers_show_saved_states_only_and_all_reach_the_tip(
    actions: list[tuple[object, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    world = World(tmp_path_factory.mktemp("world") / "run")
    try:
        for action in actions:
            act(world, action)
        world.check_servers()
        for server in [*world.servers, ModelServer(world.run_dir)]:
            assert server.follow().problem is None
            assert server.live == world.trainer.tip
            assert server.rows == world.trainer.rows
    finally:
        world.trainer.close()
