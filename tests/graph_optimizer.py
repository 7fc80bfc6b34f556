"""TensorFlow's graph optimizer (Grappler): off in most tests, because it takes most of the time of a small graph.

A test that is marked `optimized` runs its graphs as production does. So does every process that a test starts: the
programs themselves have no such switch.
"""

from __future__ import annotations

import sys


def optimize_graphs(is_on: bool) -> None:
    """For all that is traced, and every Session that is made, from now on. Nothing where TensorFlow is not imported."""
    tensorflow = sys.modules.get("tensorflow")
    if tensorflow is not None:
        tensorflow.config.optimizer.set_experimental_options({"disable_meta_optimizer": not is_on})
