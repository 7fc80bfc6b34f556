"""What must hold under MirroredStrategy: `python -m tests.distributed.mirrored_program [SCENARIO ...]`.

Two logical CPUs are the devices. They must be made before TensorFlow starts, so all scenarios run in one process of
their own. Prints a JSON object: the name of each scenario, and null or the traceback of what did not hold.
"""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

import tensorflow as tf

from tests.distributed import mirrored_chains, mirrored_refusals, mirrored_training
from tests.distributed.mirrored_models import SCENARIOS
from tests.forks import search_less_for_garbage

__all__ = ["SCENARIOS", "mirrored_chains", "mirrored_refusals", "mirrored_training"]


def main() -> None:
    search_less_for_garbage()
    wanted = sys.argv[1:] or list(SCENARIOS)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    found: dict[str, str | None] = {}
    for name in wanted:
        with tempfile.TemporaryDirectory() as directory:
            try:
                SCENARIOS[name](strategy, Path(directory))
                found[name] = None
            except Exception:  # noqa: BLE001 - the test that asked for this scenario reports it
                found[name] = traceback.format_exc()
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
