"""For schemathesis, which calls this: makes of requests that a JSON Schema allows some that the model takes.

A schema cannot say that columns have equally many rows, that data have their shape, that 1.0 is no integer, or that
an id is a row of a table. What is no such request is left as it is.
"""

from __future__ import annotations

from math import prod
from typing import Any

import schemathesis

IDS, ROWS = "user", 2


@schemathesis.hook
def before_call(_context: Any, case: schemathesis.Case[Any], _kwargs: Any) -> None:
    is_positive = case.meta is not None and case.meta.generation.mode is schemathesis.GenerationMode.POSITIVE
    if is_positive and isinstance(case.body, dict):
        case.body = completed(case.body)


def completed(body: dict[str, Any]) -> dict[str, Any]:
    inputs, rows = body.get("inputs"), body.get("instances")
    if isinstance(inputs, dict) and all(isinstance(column, list) for column in inputs.values()):
        count = min(map(len, inputs.values()), default=0)
        return {**body, "inputs": {name: _ids(name, column[:count]) for name, column in inputs.items()}}
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        return {**body, "instances": [{name: _ids(name, cell) for name, cell in row.items()} for row in rows]}
    if isinstance(inputs, list) and all(_is_tensor(tensor) for tensor in inputs):
        count = min((int(tensor["shape"][0]) for tensor in inputs), default=0)
        return {**body, "inputs": [_filled(tensor, count) for tensor in inputs]}
    return body


def _ids(name: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_ids(name, item) for item in value]
    is_id = (
        name == IDS and isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    )
    return int(value) % ROWS if is_id else value


def _is_tensor(tensor: Any) -> bool:
    if not isinstance(tensor, dict) or not isinstance(tensor.get("data"), list):
        return False
    shape = tensor.get("shape")
    return isinstance(shape, list) and bool(shape) and all(size in range(1, 9) for size in shape)


def _filled(tensor: dict[str, Any], rows: int) -> dict[str, Any]:
    shape = [rows, *map(int, tensor["shape"][1:])]
    data = [leaf for item in tensor["data"] for leaf in (item if isinstance(item, list) else [item])]
    data = data or (["text"] if tensor.get("datatype") == "BYTES" else [1])
    data = (data * prod(shape))[: prod(shape)]
    return {**tensor, "shape": shape, "data": _ids(tensor.get("name", ""), data)}
