"""A model of a few lines in place of a loader: for tests of what the server does before and after the call."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hotdelta.chain import Manifest, Node, Position, SignatureSpec, TensorSpec
from hotdelta.errors import NotReadyError, RequestError
from loader.model.served import Version
from loader.status import LoaderStatus, ServedTable, State
from loader.update_figures import UpdateFigures
from server.rpc.messages import kind
from server.served_model import Array

IDS = TensorSpec("ids", (None, 2), "int64")
EXAMPLES = TensorSpec("inputs", (None,), "string")
SIGNATURES = {
    "serving_default": SignatureSpec((IDS,), (TensorSpec("score", (None,), "float32"),)),
    "two": SignatureSpec(
        (TensorSpec("user", (None,), "int64"), TensorSpec("weight", (None,), "float32")),
        (TensorSpec("product", (None,), "float32"), TensorSpec("user", (None,), "int64")),
    ),
    "total": SignatureSpec((IDS,), (TensorSpec("sum", (), "int64"),)),
    "echo": SignatureSpec((TensorSpec("text", (None,), "string"),), (TensorSpec("text", (None,), "string"),)),
    "broken": SignatureSpec((IDS,), ()),
    "classify": SignatureSpec(
        (EXAMPLES,),
        (TensorSpec("classes", (None, 2), "string"), TensorSpec("scores", (None, 2), "float32")),
    ),
    "regress": SignatureSpec((EXAMPLES,), (TensorSpec("outputs", (None, 1), "float32"),)),
}


def _weights(examples: Array) -> Array:
    """Of each example its feature `weight`: the last one that is given."""
    found = [kind("tensorflow.Example").FromString(each).features.feature for each in examples]
    return np.array([each["weight"].float_list.value[0] for each in found], np.float32)


@dataclass
class FakeModel:
    """Sums ids; an id from 100 is out of range. Calls wait while `may_answer` is cleared, after `is_asked` is set."""

    position: Position | None = field(default=Position(1, 1))
    calls: list[tuple[str, int]] = field(default_factory=list)
    may_answer: threading.Event = field(default_factory=threading.Event)
    is_asked: threading.Event = field(default_factory=threading.Event)
    orders: list[tuple[str, Position | int | None]] = field(default_factory=list)
    is_alive: bool = True
    is_started: bool = False
    figures: UpdateFigures = field(default_factory=UpdateFigures)

    def __post_init__(self) -> None:
        self.may_answer.set()

    def start(self) -> None:
        self.is_started = True

    def stop(self) -> None:
        self.is_started = False

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        return self.status().signatures

    def status(self) -> LoaderStatus:
        if self.position is None:
            return LoaderStatus(State.WAITING, "waiting for an export", is_ready=False)
        return LoaderStatus(
            State.FOLLOWING,
            "",
            is_ready=True,
            model_name="fake",
            export_version=1,
            signatures=SIGNATURES,
            node=Node(self.position, "0" * 32),
            step=10,
            tables=(ServedTable("items", 100, (4,), "float32"),),
        )

    @property
    def export(self) -> tuple[str, int] | None:
        status = self.status()
        if status.model_name is None or status.export_version is None:
            return None
        return status.model_name, status.export_version

    def commits(self, newest: int) -> tuple[Manifest, ...]:
        return ()

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], Version] | None:
        """Always in the middle of an update, as it seems."""
        return None

    def predict(self, signature: str, feeds: Mapping[str, Array]) -> tuple[Mapping[str, Array], Version]:
        self.is_asked.set()
        assert self.may_answer.wait(60)
        self.calls.append((signature, len(next(iter(feeds.values())))))
        if self.position is None:
            raise NotReadyError("no model is served yet")
        return self._outputs(signature, feeds), Version(self.position, self.position.seq * 10, 1)

    def rollback(self, position: Position) -> Node:
        if self.position is None or position >= self.position:
            raise RequestError(f"{position} is not before {self.position}")
        return self._order("rollback", position)

    def rollback_deltas(self, deltas: int) -> Node:
        return self._order("rollback_deltas", deltas)

    def pin(self, position: Position | None = None) -> Node:
        return self._order("pin", position)

    def resume(self) -> Node:
        return self._order("resume", None)

    def release(self, position: Position) -> Node:
        return self._order("release", position)

    def _order(self, name: str, value: Position | int | None) -> Node:
        if self.position is None:
            raise NotReadyError("no model is served yet")
        self.orders.append((name, value))
        return Node(self.position, "0" * 32)

    def _outputs(self, signature: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        match signature:
            case "serving_default":
                if (feeds["ids"] >= 100).any():
                    raise RequestError("the model refuses this input: an id is not in [0, 100)")
                return {"score": feeds["ids"].sum(axis=1).astype(np.float32)}
            case "two":
                product = (feeds["user"] * feeds["weight"]).astype(np.float32)
                return {"product": product, "user": feeds["user"]}
            case "total":
                return {"sum": np.asarray(feeds["ids"].sum())}
            case "echo":
                return {"text": feeds["text"]}
            case "classify":
                weights = _weights(feeds["inputs"])
                labels = np.array([[b"no", b"yes"]] * len(weights), object)
                return {"classes": labels, "scores": np.stack([1 - weights, weights], axis=1)}
            case "regress":
                return {"outputs": _weights(feeds["inputs"]).reshape(-1, 1)}
            case _:
                raise ZeroDivisionError("a fault that nobody translated")
