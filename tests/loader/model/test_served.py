"""What answers beside an update, with a model of one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pytest

from hotdelta.chain import Node, Position
from hotdelta.errors import NotReadyError, RequestError
from loader.model.gate import Gate
from loader.model.live_model import LiveModel
from loader.model.served import Origin, Served, Serving, Version

pytestmark = pytest.mark.I2


class Doubling:
    def predict(self, signature: str, feeds: Mapping[str, Any]) -> dict[str, np.ndarray]:
        if signature != "double":
            raise RequestError(f"there is no signature {signature!r}")
        return {"doubled": 2 * feeds["ids"]}


def serving_at(position: Position | None, gate: Gate) -> Serving:
    serving = Serving(gate, wall_clock=lambda: 7.0, on_first_served=lambda: None)
    if position is not None:
        model = cast(LiveModel, Doubling())
        node = Node(position, "0" * 32)
        serving.publish(Served(model, node, Version(position, 10, 1), Origin(position, 0), applied_at=5.0))
    return serving


def test_who_must_not_wait_is_answered_at_once_or_not_at_all() -> None:
    gate = Gate()
    serving = serving_at(Position(1, 3), gate)

    answered = serving.predict_at_once("double", {"ids": np.array([4])})
    with gate.exclusive():
        during = serving.predict_at_once("double", {"ids": np.array([4])})

    assert answered is not None
    assert answered[0]["doubled"].tolist() == [8]
    assert answered[1].position == Position(1, 3)
    assert during is None


def test_an_answer_at_once_is_the_first_that_a_position_gave() -> None:
    serving = serving_at(Position(1, 3), Gate())

    serving.predict_at_once("double", {"ids": np.array([4])})

    assert serving.current is not None
    assert serving.current.first_served_at == 7.0


@pytest.mark.parametrize(
    "position, error", [(None, NotReadyError), (Position(1, 3), RequestError)], ids=["no model", "refused"]
)
def test_the_gate_is_left_open_after_a_failure(position: Position | None, error: type[Exception]) -> None:
    gate = Gate()
    serving = serving_at(position, gate)

    with pytest.raises(error):
        serving.predict_at_once("triple", {})

    with gate.exclusive():
        assert gate.is_closed
