"""Every Python example of the pages runs as it is printed, with what its page says is the reader's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from exporter import export_saved_model
from hotdelta.chain import Scanner
from hotdelta.keras import Adagrad, DeltaCheckpoint, Embedding, held_directories
from tests.docs.pages import FRAGMENT, PAGES, PYTHON, Block, blocks_of, imports_of

Scope = dict[str, Any]

# Graph mode is a switch of the whole process: tests/compat runs that page. test_tutorial follows the tutorial.
ELSEWHERE = ("tf1.md", "tutorial.md", "tutorial.zh.md")
BLOCKS = [
    block
    for page in PAGES
    for block in blocks_of(page)
    if block.info == PYTHON and page.name not in ELSEWHERE
]
QUICK_START, *OTHERS = BLOCKS
CHANGES = {
    '"3.17"': '"1.2"',
    "model.ckpt-1000": "model.ckpt-0",
    "model.ckpt-1010": "model.ckpt-128",
    "for (user, item, label), end in batches": "for (user, item, label), end in pairs",
}


class Reader:
    """Data that can be read from a place on."""

    def read(self, offset: int) -> Iterator[tuple[int, float, Any, Any]]:
        for end, (x, y) in enumerate(random_batches().as_numpy_iterator(), offset + 1):
            yield end, 1.0, x, y


class Towers(tf.Module):
    """Two tables and a function to serve them."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = tf.Variable(tf.zeros([50, 4])), tf.Variable(tf.ones([20, 4]))

    @tf.function(
        input_signature=[tf.TensorSpec([None], tf.int64, "user"), tf.TensorSpec([None], tf.int64, "item")]
    )
    def predict(self, user: tf.Tensor, item: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"score": tf.gather(self.users, user) * tf.gather(self.items, item)}


def random_batches() -> tf.data.Dataset:
    random = np.random.default_rng(1)
    ids, labels = random.integers(0, 50, 16), random.random((16, 1)).astype("f4")
    return tf.data.Dataset.from_tensor_slices((ids, labels)).batch(8)


def small_model() -> keras.Model:
    item = keras.Input((), dtype="int64", name="item")
    vector = keras.layers.Activation("tanh", name="item_vector")(Embedding(50, 4, name="items")(item))
    model = keras.Model(item, keras.layers.Dense(1, name="score")(vector))
    model.compile(Adagrad(0.05), "mse")
    return model


def trained_model() -> keras.Model:
    """Leaves a full at position 1.1 and a delta at 1.2 in run/."""
    model = small_model()
    with DeltaCheckpoint("run", save_secs=None, save_incremental_secs=None) as checkpoint:
        model.fit(random_batches(), callbacks=[checkpoint], verbose=0)
    return model


def old_model() -> keras.Model:
    """Its chain is in ranker_7/run."""
    model = small_model()
    with DeltaCheckpoint("ranker_7/run", save_secs=None, save_incremental_secs=None) as checkpoint:
        model.fit(random_batches(), callbacks=[checkpoint], verbose=0)
    return model


def wider_model() -> keras.Model:
    """The same table, and one layer more."""
    item = keras.Input((), dtype="int64", name="item")
    hidden = keras.layers.Dense(8, name="hidden")(Embedding(50, 4, name="items")(item))
    model = keras.Model(item, keras.layers.Dense(1, name="score")(hidden))
    model.compile(Adagrad(0.05), "mse")
    return model


def for_training() -> Scope:
    return {
        "model": small_model(),
        "data": random_batches(),
        "reader": Reader(),
        "checkpoint": DeltaCheckpoint("run"),
        "batches": [(batch, end, 1.0) for end, batch in enumerate(random_batches().as_numpy_iterator())],
        "pairs": [((np.arange(4), np.arange(4), np.ones(4, "f4")), 1)],
    }


READERS_OWN: dict[str, Callable[[], Scope]] = {
    "training.md": for_training,
    "export.md": lambda: {"keras_model": small_model(), "module": Towers()},
    "saving.md": lambda: {"model": trained_model(), "data": random_batches()},
    "from-fluid.md": lambda: {"model": small_model(), "data": random_batches()},
    "several-models.md": lambda: {"wider_model": wider_model, "data": random_batches(), "old": old_model()},
    "distributed.md": lambda: {"make_model": small_model, "data": random_batches()},
    "open-vocabulary.md": dict,
}


@pytest.fixture(scope="module")
def quick_started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The README's script has run here, and so has the exporter. At 1.1 is the first full, at 1.2 the last delta."""
    directory = tmp_path_factory.mktemp("quick_start")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        scope: Scope = {}
        # However slow the machine is, no delta is due before the last one.
        QUICK_START.run(
            scope, {"1_000_000": "10_000", "save_incremental_secs=5": "save_incremental_secs=500"}
        )
        scope["checkpoint"].close()
        assert export_saved_model("run", "export", save_incr_model=True) == Path("export/1")
    return directory


@pytest.fixture
def directory(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Path:
    """The working directory of an example; on the page of the exporter it holds what the quick start left."""
    if block.page.name == "export.md":
        shutil.copytree(request.getfixturevalue("quick_started"), tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples() -> list[Any]:
    # Each call of export_saved_model takes seconds, and tests/exporter makes them all.
    return [
        pytest.param(
            block, id=str(block), marks=pytest.mark.soak if "export_saved_model" in block.text else ()
        )
        for block in OTHERS
    ]


def test_the_quick_start_leaves_a_chain(quick_started: Path) -> None:
    positions = [str(manifest.position) for manifest in Scanner(quick_started / "run").scan().manifests]

    assert positions == ["1.1", "1.2"]


@pytest.mark.filterwarnings(
    "ignore:`shuffle=True` was passed, but will be ignored", "ignore:Your input ran out of data"
)
@pytest.mark.parametrize("block", examples())
def test_the_example_runs_as_it_is_printed(block: Block, directory: Path) -> None:
    scope = READERS_OWN[block.page.name]()
    seen = [other for other in BLOCKS if other.page == block.page and other.line < block.line]
    exec(imports_of(seen), scope)  # noqa: S102
    try:
        block.run(scope, {old: new for old, new in CHANGES.items() if old in block.text})
    finally:
        held_directories.close_holder(directory / "run")


def test_what_is_marked_as_a_fragment_is_python_all_the_same() -> None:
    fragments = [block for page in PAGES for block in blocks_of(page) if block.info == FRAGMENT]

    assert fragments
    for block in fragments:
        compile(block.text, str(block), "exec")


def test_a_block_is_python_or_a_fragment_of_it_or_no_program() -> None:
    assert {block.info for page in PAGES for block in blocks_of(page)} == {PYTHON, FRAGMENT, ""}
