"""An Estimator that trains five more steps for each line of its input, and says what it then predicts.

`python -m tests.compat.estimator_program MODEL_DIR`; with the first training it evaluates, and exports to
`MODEL_DIR/export/served`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import hotdelta.compat.v1 as tf
from tests.compat.chain_states import manifests
from tests.compat.graph_mode.checks_of_estimators import estimator_of, examples, serving_input
from tests.compat.graph_mode.small_graphs import ROWS
from tests.docs.pages import ROOT, blocks_of


def every_id() -> Any:
    return tf.data.Dataset.from_tensors({"id": np.arange(ROWS)})


def train_and_export(estimator: Any) -> None:
    """By the example of docs/tf1.md."""
    (example,) = (
        block for block in blocks_of(ROOT / "docs" / "tf1.md") if "train_and_evaluate(" in block.text
    )
    scope = {
        "tf": tf,
        "estimator": estimator,
        "train_input_fn": examples,
        "eval_input_fn": examples,
        "serving_input_receiver_fn": serving_input,
    }
    example.run(scope, {"max_steps=100_000": "max_steps=5", "steps=100,": "steps=1,"})


def main(model_dir: Path) -> None:
    estimator = estimator_of(model_dir)
    for number, _ in enumerate(sys.stdin):
        if number == 0:
            train_and_export(estimator)
        else:
            estimator.train(examples, steps=5)
        scores = np.array([answer["score"] for answer in estimator.predict(every_id)], np.float32)
        position = str(manifests(model_dir)[-1].position)
        print(json.dumps({"position": position, "bits": scores.view(np.uint32).tolist()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
