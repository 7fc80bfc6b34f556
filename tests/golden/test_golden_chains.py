"""Chains that earlier commits wrote are read, verified, resumed, exported and served, bit for bit.

The chains of TensorFlow 1 are resumed and exported in tests/compat/graph_mode/checks_of_golden_chains.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hotdelta.io as hio
from exporter import export_saved_model
from hotdelta.chain import Kind, Position, Scanner
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.cli import main as hotdelta
from hotdelta.train import DeltaWriter
from tests.chain_replay import replay, values_of
from tests.distributed.cluster_model import ROWS, WIDTH, Ranker
from tests.exporter.trained_run import values_of as values_of_export
from tests.golden.golden_chains import CHAINS, Digests, GoldenChain, digests, golden_chain
from tests.golden.keras_recipes import batch, checkpoint_of, live_values, ranker
from tests.io.models import bits
from tests.loader.step_model import SIGNATURE, serving, wait_for_position
from tests.train.keys.keyed_loop import Training

pytestmark = pytest.mark.I1

EVERY_CHAIN = ["forked", "io", "keras", "keyed", "signed", "slot_names", "tf1", "tf1_servers", "tf2_servers"]
# Of slot_names only a model tells which ids are those of a slot: tests/train/model/test_slot_owners.py resumes it.
READ_BY_NAME = [name for name in EVERY_CHAIN if name != "slot_names"]
KERAS_CHAINS = ["forked", "keras", "signed"]


@pytest.fixture
def chain(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> GoldenChain:
    found = golden_chain(request.param)
    if found.key_file is not None:
        monkeypatch.setenv(KEY_FILE_VARIABLE, str(found.key_file))
    return found


def of_each(names: list[str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("chain", names, indirect=True)


def part_of(state: Digests, keys: Any) -> Digests:
    return {key: state[key] for key in keys}


def test_every_chain_is_tested() -> None:
    assert sorted(path.name for path in CHAINS.iterdir()) == EVERY_CHAIN


@of_each(READ_BY_NAME)
def test_every_position_has_the_values_that_its_writer_had(chain: GoldenChain, tmp_path: Path) -> None:
    run_dir = chain.copy_to(tmp_path)
    listing = Scanner(run_dir).scan()
    assert not listing.refused
    committed = {str(manifest.position) for manifest in listing.manifests}
    assert committed >= chain.states.keys()
    for position, state in chain.states.items():
        assert digests(replay(run_dir, Position.parse(position), state)) == state, position


@of_each(EVERY_CHAIN)
def test_the_command_line_verifies_lists_and_describes_it(
    chain: GoldenChain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = chain.copy_to(tmp_path)
    assert hotdelta(["verify", str(run_dir)]) == 0
    assert chain.newest in capsys.readouterr().out
    assert hotdelta(["chain", str(run_dir)]) == 0
    listed = capsys.readouterr().out
    assert [position for position in chain.states if position not in listed] == []
    assert hotdelta(["describe", str(run_dir)]) == 0
    described = capsys.readouterr().out
    assert [key for key in chain.states[chain.newest] if key not in described] == []


@of_each(KERAS_CHAINS)
def test_training_goes_on_where_it_ended(chain: GoldenChain, tmp_path: Path) -> None:
    run_dir, reader = chain.copy_to(tmp_path), {"batch": 0}
    newest = Position.parse(chain.newest)
    with checkpoint_of(run_dir, reader) as checkpoint:
        model = ranker(seed=5)
        resumed = checkpoint.resume(model)
        assert resumed is not None
        assert (resumed.position, resumed.step) == (newest, chain.step)
        assert reader == {"batch": chain.step}
        assert digests(live_values(checkpoint)) == chain.states[chain.newest]
        model.train_on_batch(*batch(chain.step + 1))
        checkpoint.step()
        checkpoint.save()
    last = Scanner(run_dir).scan().manifests[-1]
    assert last.position == Position(newest.run + 1, 1)
    assert last.parent is not None
    assert last.parent.position == newest


@of_each(["keras", "signed"])
def test_it_is_served_by_the_export_of_its_time(chain: GoldenChain, tmp_path: Path) -> None:
    chain.copy_to(tmp_path)
    _assert_serves(tmp_path, chain)


@of_each(["forked"])
def test_it_is_exported_and_served(chain: GoldenChain, tmp_path: Path) -> None:
    state = _export(chain.copy_to(tmp_path), tmp_path / "export")
    assert state == part_of(chain.states[chain.newest], state)
    _assert_serves(tmp_path, chain)


@of_each(["keyed"])
def test_a_loop_goes_on_with_its_keys_and_they_are_served(chain: GoldenChain, tmp_path: Path) -> None:
    run_dir = chain.copy_to(tmp_path)
    training = Training(run_dir)
    with training.writer as writer:
        assert writer.resumed is not None
        assert (str(writer.resumed.position), writer.resumed.step) == (chain.newest, chain.step)
        assert digests(training.values()) == chain.states[chain.newest]
        assert len(training.ranker.users.items()[0]) == 45
        state = _export(run_dir, tmp_path / "export")
        assert state == part_of(chain.states[chain.newest], state)
        training.train(["user 44", "user 45"])
        writer.save()
        with serving(tmp_path) as loader:
            assert writer.position is not None
            wait_for_position(loader, writer.position)
            users = [f"user {number}" for number in range(50)]
            served, _ = loader.predict(SIGNATURE, {"users": np.array(users, object)})
        np.testing.assert_array_equal(served["score"], training.ranker.serve(tf.constant(users))["score"])


@of_each(["io"])
def test_saves_are_loaded_each_by_its_name(chain: GoldenChain, tmp_path: Path) -> None:
    run_dir = chain.copy_to(tmp_path)
    model = ranker(seed=5)
    for options, position in (({}, "2.1"), ({"filename": "first"}, "1.1"), ({"position": "2.1"}, "2.1")):
        loaded = hio.load_persistables(model, run_dir, **options)
        assert str(loaded.position) == position
        assert digests(bits(model)) == chain.states[position]


@of_each(["tf2_servers"])
def test_what_parameter_servers_wrote_is_resumed_by_one_process_and_exported(
    chain: GoldenChain, tmp_path: Path
) -> None:
    run_dir = chain.copy_to(tmp_path)
    state = chain.states[chain.newest]
    exported = _export(run_dir, tmp_path / "export")
    assert part_of(exported, ["kernel", "table"]) == part_of(state, ["kernel", "table"])
    model, slot = Ranker(), tf.Variable(tf.zeros([ROWS, WIDTH]))
    with DeltaWriter(
        run_dir,
        model,
        tables=["table"],
        slots={"table": {"accumulator": slot}},
        signatures={SIGNATURE: model.score},
    ) as writer:
        assert writer.resumed is not None
        assert str(writer.resumed.position) == chain.newest
        values = {"kernel": model.kernel, "table": model.table, "slots/accumulator/table": slot}
        assert digests(values_of(values)) == state
    with serving(tmp_path) as loader:
        wait_for_position(loader, Position.parse(chain.newest))
        outputs, _ = loader.predict(SIGNATURE, {"ids": np.arange(ROWS)})
        assert outputs["rows"].tobytes() == model.table.numpy().tobytes()


@of_each(["keras"])
def test_a_manifest_of_a_later_format_is_refused_by_name_and_the_rest_is_served(
    chain: GoldenChain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = chain.copy_to(tmp_path)
    newest = Scanner(run_dir).scan().manifests[-1]
    path = run_dir / ".incremental_checkpoint" / f"{newest.prefix}.manifest.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 3'))
    assert hotdelta(["verify", str(run_dir)]) == 1
    said = capsys.readouterr()
    assert "format_version 3" in said.out + said.err
    assert "upgrade hotdelta" in said.out + said.err
    with serving(tmp_path) as loader:
        wait_for_position(loader, _before(run_dir, newest.position))


def _before(run_dir: Path, position: Position) -> Position:
    deltas = [m.position for m in Scanner(run_dir).scan().manifests if m.kind is Kind.DELTA]
    return max(found for found in deltas if found < position)


def _export(run_dir: Path, export_dir: Path) -> Digests:
    """What the new export holds."""
    return digests(values_of_export(export_saved_model(run_dir, export_dir, save_incr_model=True)))


def _assert_serves(root: Path, chain: GoldenChain) -> None:
    question, model = batch(0)[0], ranker(seed=5)
    hio.load_persistables(model, root / "run")
    key = {"signing_key_file": chain.key_file} if chain.key_file else {}
    with serving(root, **key) as loader:
        wait_for_position(loader, Position.parse(chain.newest))
        outputs, version = loader.predict(
            SIGNATURE, {name: np.asarray(value) for name, value in question.items()}
        )
        assert version.step == chain.step
        np.testing.assert_allclose(outputs["score"], model.predict_on_batch(question)["score"], rtol=1e-6)
