"""The table without a fixed vocabulary in a custom loop: trained, saved, resumed, exported and served."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from hotdelta.errors import ConfigurationError
from hotdelta.keras import DynamicEmbedding
from hotdelta.train import DynamicTable
from tests.chain_replay import replay
from tests.train.keys.keyed_loop import Ranker, Training

pytestmark = pytest.mark.optimized


@pytest.mark.I1
def test_a_loop_is_exact_and_resumes(tmp_path: Path) -> None:
    first = Training(tmp_path)
    expected: dict[str, bytes] = {}
    with first.writer as writer:
        writer.save_full()
        for number in range(5):
            first.train([f"user {number + each}" for each in range(20)])
            writer.save()
            assert writer.position is not None
            expected = first.values()
            assert replay(tmp_path, writer.position, expected) == expected
    again = Training(tmp_path)
    with again.writer:
        assert again.values() == expected
        assert len(again.ranker.users.items()[0]) == 24


def test_what_a_loop_trained_is_served(tmp_path: Path) -> None:
    training = Training(tmp_path / "run")
    with training.writer as writer:
        training.train(["a", "b", "c"])
        writer.save_full()
        path = export_saved_model(tmp_path / "run", tmp_path / "export", save_incr_model=True)
        training.train(["c", "d", "e"])
        writer.save()
        prefix = max(
            (tmp_path / "run/.incremental_checkpoint").glob("*.index"), key=lambda each: each.stat().st_mtime
        )
    loaded = tf.saved_model.load(str(path))
    users = tf.constant(["a", "c", "d", "e", "nobody"])
    ask, expected = loaded.signatures["serving_default"], training.ranker.serve(users)["score"].numpy()
    assert ask(users=users)["score"].numpy()[[2, 3]].tolist() == [0.0, 0.0]
    loaded.signatures["restore_incremental"](prefix=tf.constant([str(prefix.with_suffix(""))]))
    np.testing.assert_array_equal(ask(users=users)["score"].numpy(), expected)
    assert expected[4] == 0.0
    assert expected[3] != 0.0
    rows, buckets, unknown = loaded.signatures["key_counts"]()["users/rows"].numpy().tolist()
    assert (rows, unknown) == (6, 4)
    assert buckets >= 64


def test_a_model_in_memory_is_not_exported() -> None:
    ranker = Ranker()
    with pytest.raises(ConfigurationError, match="no fixed vocabulary"):
        export_saved_model(ranker, "nowhere", signatures={"serving_default": ranker.serve}, tables=["items"])


def test_strategies_are_refused() -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    for make in (lambda: DynamicTable(4, max_rows=10), lambda: DynamicEmbedding(4, max_rows=10).build()):
        with strategy.scope(), pytest.raises(ConfigurationError, match="under MirroredStrategy: replicas"):
            make()
