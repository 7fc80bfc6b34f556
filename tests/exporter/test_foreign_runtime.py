"""An export is updated by plain TensorFlow, in a process that cannot import anything of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.exporter.bundles import delta_tensors, full_tensors
from tests.waiting import LIMIT_SECONDS

pytestmark = [pytest.mark.I8, pytest.mark.optimized]

SCRIPT = '''
import sys


class Refuse:
    """An environment in which the project is installed has it on its path all the same."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("hotdelta", "exporter", "loader", "server"):
            raise ImportError(f"{name} must not be needed")


sys.meta_path.insert(0, Refuse())
import numpy as np
import tensorflow as tf

export, full, delta, expected = sys.argv[1:5]
expected = float(expected)

loaded = tf.saved_model.load(export)
loaded.signatures["restore_full"](prefix=tf.constant([full]))
score = loaded.signatures["serving_default"]
before = score(user=tf.constant([3], tf.int64), item=tf.constant([7], tf.int64))["score"].numpy()
answer = loaded.signatures["restore_incremental"](prefix=tf.constant([delta]))
found = score(user=tf.constant([3], tf.int64), item=tf.constant([7], tf.int64))["score"].numpy()
assert answer["rows"].numpy() == [5], answer
assert abs(found[0] - expected) < 1e-5 and found != before, (found, before, expected)

with tf.compat.v1.Session(graph=tf.Graph()) as session:
    signatures = tf.compat.v1.saved_model.load(session, ["serve"], export).signature_def

    def call(name, **inputs):
        signature = signatures[name]
        feeds = {signature.inputs[key].name: value for key, value in inputs.items()}
        return session.run({key: tensor.name for key, tensor in signature.outputs.items()}, feeds)

    call("restore_full", prefix=[full])
    before = call("serving_default", user=[3], item=[7])["score"]
    call("restore_incremental", prefix=[delta])
    found = call("serving_default", user=[3], item=[7])["score"]
    assert abs(found[0] - expected) < 1e-5 and found != before, (found, before, expected)
print("both saw the new rows")
'''


def test_plain_tensorflow_applies_a_delta_eagerly_and_in_a_session(
    export: Path, full: str, delta: str, tmp_path: Path
) -> None:
    base, change = full_tensors(), delta_tensors()
    item = change["items-rows"][0].astype("float32")
    expected = float((change["users-rows"][1] * item) @ base["kernel"] + change["bias-value"][0])
    # -I: neither the working directory nor PYTHONPATH is searched.
    command = [sys.executable, "-I", "-c", SCRIPT, str(export), full, delta, str(expected)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "both saw the new rows" in done.stdout
