"""What may be asked of a model, as JSON Schemas made from its signatures. All that they can say, they say.

They cannot say that inputs have equally many rows, that ids are rows of a table, or that data have their `shape`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from hotdelta.chain import SignatureSpec, TensorSpec

DEFAULT_SIGNATURE = "serving_default"

JsonSchema = dict[str, Any]

POSITION: JsonSchema = {
    "type": "string",
    "pattern": r"^[1-9][0-9]{0,8}\.[1-9][0-9]{0,8}$",
    "example": "3.17",
}
_LARGEST = {
    "float16": 65504.0,
    "float32": 3.4028234e38,
    "bfloat16": 3.38e38,
    "float64": 1.7976931348623157e308,
}
_BYTES: JsonSchema = {
    "type": "object",
    "required": ["b64"],
    "additionalProperties": False,
    "properties": {"b64": {"type": "string", "pattern": "^([A-Za-z0-9+/]{4})*$", "maxLength": 2**20}},
    "description": "Bytes, as base64.",
}
# Where nothing is known of a model: nested lists of values.
ANY_ARRAY: JsonSchema = {
    "type": ["number", "boolean", "string", "object", "array"],
    "description": "A number, boolean, string, {'b64': ...}, or lists of them nested as the input has axes.",
}


def predict_schema(
    signatures: Mapping[str, SignatureSpec], *, max_rows: int, max_wait_ms: int, is_closed: bool
) -> JsonSchema:
    """Rows or columns for each signature. `is_closed`: other members are refused, and not left alone."""
    forms = [
        _form(name, member, schema, max_wait_ms=max_wait_ms, is_closed=is_closed)
        for name, spec in sorted(signatures.items())
        for member, schema in (
            ("instances", _rows(spec, max_rows)),
            ("inputs", _columns(spec, max_rows)),
        )
    ]
    return {"anyOf": forms} if len(forms) > 1 else forms[0]


def infer_schema(signatures: Mapping[str, SignatureSpec], *, max_rows: int, max_wait_ms: int) -> JsonSchema:
    """By the Open Inference Protocol, all of it in JSON."""
    forms = []
    for name, spec in sorted(signatures.items()):
        parameters = _asked(name, max_wait_ms) | {"binary_data_output": {"type": "boolean"}}
        required = [] if name == DEFAULT_SIGNATURE else ["signature_name"]
        inputs = [_infer_input(tensor, max_rows) for tensor in spec.inputs]
        outputs = [tensor.name for tensor in spec.outputs]
        forms.append(
            {
                "type": "object",
                "required": ["inputs", *(["parameters"] if required else [])],
                "properties": {
                    "id": {"type": ["string", "null"]},
                    "parameters": {
                        "type": "object" if required else ["object", "null"],
                        "required": required,
                        "properties": parameters,
                        **_WAIT_NEEDS_POSITION,
                    },
                    "inputs": {
                        "type": "array",
                        "minItems": len(inputs),
                        "maxItems": len(inputs),
                        "prefixItems": inputs,
                        "description": "In any order.",
                    },
                    "outputs": {
                        "type": ["array", "null"],
                        "description": "Those that are wanted; without it, all.",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"enum": outputs},
                                "parameters": {
                                    **_object(binary_data={"type": "boolean"}),
                                    "type": ["object", "null"],
                                },
                            },
                        },
                    },
                },
            }
        )
    return {"anyOf": forms} if len(forms) > 1 else forms[0]


def predict_example(signatures: Mapping[str, SignatureSpec]) -> JsonSchema:
    """One row of zeros and empty texts."""
    name, spec = _usual(signatures)
    rows = {tensor.name: _zeros(tensor, tensor.shape or ()) for tensor in spec.inputs}
    return {**_named(name), "inputs": rows}


def infer_example(signatures: Mapping[str, SignatureSpec]) -> JsonSchema:
    name, spec = _usual(signatures)
    inputs = []
    for tensor in spec.inputs:
        shape = [1 if size is None else size for size in tensor.shape or ()]
        inputs.append(
            {
                "name": tensor.name,
                "datatype": _datatype(tensor),
                "shape": shape,
                "data": _zeros(tensor, [prod(shape)]),
            }
        )
    return {**({"parameters": _named(name)} if _named(name) else {}), "inputs": inputs}


def _usual(signatures: Mapping[str, SignatureSpec]) -> tuple[str, SignatureSpec]:
    name = DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in signatures else min(signatures)
    return name, signatures[name]


def _named(signature: str) -> JsonSchema:
    return {} if signature == DEFAULT_SIGNATURE else {"signature_name": signature}


def _zeros(tensor: TensorSpec, shape: Sequence[int | None]) -> Any:
    value: Any = {"string": "", "bool": False}.get(tensor.dtype, 0)
    for size in reversed(shape):
        value = [value] * (1 if size is None else size)
    return value


def _datatype(tensor: TensorSpec) -> str:
    return _DATATYPES.get(tensor.dtype, tensor.dtype.upper())


# Without a position to wait for there is nothing to wait for.
_WAIT_NEEDS_POSITION: JsonSchema = {
    "if": {"required": ["wait_ms"], "properties": {"wait_ms": {"type": "integer", "minimum": 1}}},
    "then": {"required": ["min_position"], "properties": {"min_position": {"type": "string"}}},
}


def _asked(signature: str, max_wait_ms: int) -> JsonSchema:
    return {
        "signature_name": {"const": signature},
        "min_position": {
            "type": ["string", "null"],
            "pattern": POSITION["pattern"],
            "description": "3.17, for example; else 409.",
        },
        "wait_ms": {
            "type": "integer",
            "minimum": 0,
            "maximum": max_wait_ms,
            "description": "Wait so long for min_position before 409.",
        },
    }


def _form(
    signature: str, member: str, schema: JsonSchema, *, max_wait_ms: int, is_closed: bool
) -> JsonSchema:
    other = "inputs" if member == "instances" else "instances"
    form: JsonSchema = {
        "type": "object",
        "required": [member] if signature == DEFAULT_SIGNATURE else [member, "signature_name"],
        "properties": {member: schema, **_asked(signature, max_wait_ms)},
        **_WAIT_NEEDS_POSITION,
    }
    if is_closed:
        form["additionalProperties"] = False
    else:
        form["not"] = {"required": [other]}
    return form


def _rows(spec: SignatureSpec, max_rows: int) -> JsonSchema:
    """One item for each row: with one input its value, or an object of all."""
    values = {tensor.name: _value(tensor, _inside(tensor)) for tensor in spec.inputs}
    row = _exactly(values)
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": max_rows,
        "description": "Rows: with one input a list of values, with several a list of objects.",
        "items": next(iter(values.values())) if len(values) == 1 else row,
    }


def _columns(spec: SignatureSpec, max_rows: int) -> JsonSchema:
    values = {tensor.name: _column(tensor, max_rows) for tensor in spec.inputs}
    return {**_exactly(values), "description": "Columns: one array for each input, with equally many rows."}


def _exactly(values: Mapping[str, JsonSchema]) -> JsonSchema:
    return {
        "type": "object",
        "required": list(values),
        "additionalProperties": False,
        "properties": dict(values),
    }


def _object(**properties: JsonSchema) -> JsonSchema:
    return {"type": "object", "properties": properties}


def _inside(tensor: TensorSpec) -> Sequence[int | None] | None:
    return None if tensor.shape is None else tensor.shape[1:]


def _column(tensor: TensorSpec, max_rows: int) -> JsonSchema:
    schema = _value(tensor, tensor.shape)
    if tensor.shape and tensor.shape[0] is None:
        schema |= {"minItems": 1, "maxItems": max_rows}
    return schema


def _value(tensor: TensorSpec, shape: Sequence[int | None] | None) -> JsonSchema:
    if shape is None:
        return ANY_ARRAY
    schema = leaf_schema(tensor.dtype)
    for size in reversed(shape):
        schema = {"type": "array", "items": schema}
        if size is not None:
            schema |= {"minItems": size, "maxItems": size}
    return schema


def leaf_schema(dtype: str) -> JsonSchema:
    """One value as JSON writes it."""
    if dtype == "string":
        return {"anyOf": [{"type": "string"}, _BYTES]}
    if dtype == "bool":
        return {"type": "boolean"}
    if dtype in _LARGEST:
        return {"type": "number", "minimum": -_LARGEST[dtype], "maximum": _LARGEST[dtype]}
    kind, _, bits = dtype.partition("int")
    if kind in ("", "u") and bits.isdigit():
        least, most = (0, 2 ** int(bits)) if kind else (-(2 ** (int(bits) - 1)), 2 ** (int(bits) - 1))
        return {"type": "integer", "minimum": least, "maximum": most - 1}
    # Such an input cannot be given as JSON.
    return {"not": {}}


def _infer_input(tensor: TensorSpec, max_rows: int) -> JsonSchema:
    least = prod(1 if size is None else size for size in tensor.shape or ())
    data: JsonSchema = {"type": "array", "minItems": least, "items": ANY_ARRAY}
    shape: JsonSchema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
    if tensor.shape is not None:
        sizes = [_size(size) for size in tensor.shape]
        if sizes and tensor.shape[0] is None:
            sizes[0] = {"type": "integer", "minimum": 1, "maximum": max_rows}
        shape = {"type": "array", "minItems": len(sizes), "maxItems": len(sizes), "prefixItems": sizes}
        data["items"] = leaf_schema(tensor.dtype)
        if len(tensor.shape) > 1:
            data = {"anyOf": [data, _value(tensor, tensor.shape)], "description": "Flat or nested."}
    return {
        "type": "object",
        "required": ["name", "shape", "datatype", "data"],
        "properties": {
            "name": {"const": tensor.name},
            "datatype": {"const": _datatype(tensor)},
            "shape": shape,
            "data": data,
        },
    }


_DATATYPES = {"string": "BYTES", "float16": "FP16", "float32": "FP32", "float64": "FP64", "bfloat16": "BF16"}


def _size(size: int | None) -> JsonSchema:
    return {"type": "integer", "minimum": 0} if size is None else {"const": size}
