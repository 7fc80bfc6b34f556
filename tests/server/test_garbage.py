"""What is taken out of the sight of Python's garbage collector, and when it is looked at again."""

from __future__ import annotations

import subprocess
import sys

from tests.waiting import LIMIT_SECONDS

MODELS_COME_AND_GO = """
import gc, weakref
from server.garbage import AfterSwap, freeze

class Model:
    def __init__(self):
        self.itself = self

def made():
    model = Model()
    return model, weakref.ref(model)

gc.disable()
first, first_lives = made()
one, other = AfterSwap(), AfterSwap()
one()
assert gc.get_freeze_count() > 0
del first

second, second_lives = made()
other()
assert first_lives(), "a first model walks over nothing that was there before"

del second
other()
assert not first_lives() and not second_lives(), "with another one what was replaced goes"

third, third_lives = made()
AfterSwap()()
del third
freeze()
assert not third_lives(), "so it does when a model was removed"
print("as it should be")
"""


def test_a_first_model_is_frozen_alone_and_one_that_is_replaced_or_removed_is_found() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", MODELS_COME_AND_GO],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )

    assert (ran.stdout, ran.stderr) == ("as it should be\n", "")
