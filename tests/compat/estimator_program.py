"""An Estimator that trains five more steps for each line of its input, and says what it then predicts.

`python -m tests.compat.estimator_program MODEL_DIR EXPORT_DIR`; after the first training it exports.
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


def every_id() -> Any:
    return tf.data.Dataset.from_tensors({"id": np.arange(ROWS)})


def main(model_dir: Path, export_dir: str) -> None:
    estimator = estimator_of(model_dir)
    for number, _ in enumerate(sys.stdin):
        estimator.train(examples, steps=5)
        if number == 0:
            estimator.export_saved_model(export_dir, serving_input, save_incr_model=True)
        scores = np.array([answer["score"] for answer in estimator.predict(every_id)], np.float32)
        position = str(manifests(model_dir)[-1].position)
        print(json.dumps({"position": position, "bits": scores.view(np.uint32).tolist()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
