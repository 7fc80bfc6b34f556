"""Chains that earlier commits wrote with TensorFlow 1 sessions are resumed, exported and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hotdelta.compat.v1 as tf
from exporter.export import ExportOptions
from hotdelta.chain import Position
from hotdelta.compat.v1.serving.graph_export import GraphSignature, export_chain
from tests.compat.chain_states import manifests, newest_state
from tests.compat.graph_mode.local_cluster import fresh_cluster
from tests.compat.graph_mode.small_graphs import ROWS, build_model, new_graph
from tests.golden.golden_chains import digests, digests_of_arrays, golden_chain
from tests.golden.graph_recipes import PARTS, session_digests, session_on
from tests.loader.step_model import serving, wait_for_position

pytestmark = pytest.mark.I1


@pytest.mark.parametrize("name", ["tf1", "tf1_servers"])
@pytest.mark.parametrize("is_on_servers", [False, True], ids=["in one process", "on servers"])
def test_a_session_goes_on_where_the_chain_ends(tmp_path: Path, name: str, is_on_servers: bool) -> None:
    chain = golden_chain(name)
    run_dir = chain.copy_to(tmp_path)
    newest = Position.parse(chain.newest)
    with session_on(run_dir, fresh_cluster() if is_on_servers else None) as (session, model):
        assert session.run(model.step) == chain.step
        assert session_digests(session) == chain.states[chain.newest]
        session.run(model.train, {model.ids: [3]})
    last = manifests(run_dir)[-1]
    assert (last.position.run, last.step) == (newest.run + 1, chain.step + 1)


@pytest.mark.parametrize("name", ["tf1", "tf1_servers"])
def test_an_export_of_the_chain_is_served_with_the_ids_of_training(tmp_path: Path, name: str) -> None:
    chain = golden_chain(name)
    run_dir = chain.copy_to(tmp_path)
    with new_graph():
        model = build_model(PARTS)
        rows = tf.nn.embedding_lookup(model.table, model.ids)
        signature = GraphSignature({"ids": model.ids}, {"rows": rows})
        export_chain(
            {"serving_default": signature}, run_dir, tmp_path / "export", ExportOptions(save_incr_model=True)
        )
    state = newest_state(run_dir)
    assert digests_of_arrays(state.items()) == chain.states[chain.newest]
    with serving(tmp_path) as loader:
        wait_for_position(loader, Position.parse(chain.newest))
        outputs, version = loader.predict("serving_default", {"ids": np.arange(ROWS)})
        assert version.step == chain.step
    part_rows = manifests(run_dir)[-1].tables["table"].part_rows
    starts = np.cumsum([0, *part_rows[:-1]])
    ids = np.arange(ROWS)
    expected = state["table"][starts[ids % len(part_rows)] + ids // len(part_rows)]
    assert digests({"rows": outputs["rows"].tobytes()}) == digests({"rows": expected.tobytes()})
