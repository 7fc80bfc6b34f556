"""The two ways in which a SavedModel is run, behind one small interface."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import tensorflow as tf

from exporter.loaded_graph import LoadedGraph
from hotdelta.train.serving.trace import graph_name

KEYS = ("bias", "items", "kernel", "users")


class Runtime(Protocol):
    def call(self, signature: str, **inputs: Any) -> Mapping[str, Any]: ...

    def state(self) -> dict[str, bytes]:
        """The bytes of all served variables, and of identity and step."""


class EagerRuntime:
    def __init__(self, directory: Path) -> None:
        self.loaded = tf.saved_model.load(str(directory))

    def call(self, signature: str, **inputs: Any) -> Mapping[str, Any]:
        function = self.loaded.signatures[signature]
        specs = function.structured_input_signature[1]
        fed = {name: tf.constant(value, specs[graph_name(name)].dtype) for name, value in inputs.items()}
        return {name: value.numpy() for name, value in function(**fed).items()}

    def state(self) -> dict[str, bytes]:
        values = {
            key: variable.numpy().tobytes()
            for key, variable in zip(KEYS, self.loaded.hotdelta_variables, strict=True)
        }
        return values | {name: value.tobytes() for name, value in self.call("identity").items()}


class SessionRuntime:
    def __init__(self, directory: Path) -> None:
        self.graph = LoadedGraph(directory).__enter__()

    def call(self, signature: str, **inputs: Any) -> Mapping[str, Any]:
        return self.graph.call(signature, inputs)

    def state(self) -> dict[str, bytes]:
        values = {
            key: value.tobytes()
            for key, value in zip(KEYS, self.graph.read_whole(range(len(KEYS))), strict=True)
        }
        return values | {name: value.tobytes() for name, value in self.call("identity").items()}
