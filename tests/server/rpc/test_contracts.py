"""The messages that are spoken by gRPC: compiled from what is written, and numbered as everybody else numbers them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import Default

import server.rpc
from server.rpc.messages import pool
from tests.waiting import LIMIT_SECONDS

RPC = Path(server.rpc.__path__[0])

# What others publish of the same contracts.
PUBLISHED = {
    "tensorflow_serving.proto": (
        "tensorflow_serving.apis.prediction_service_pb2",
        "tensorflow_serving.apis.model_service_pb2",
    ),
    "tensorflow.proto": ("tensorflow.core.example.example_pb2", "tensorflow.core.protobuf.meta_graph_pb2"),
    "tensorflow_error.proto": ("tensorflow.core.protobuf.error_codes_pb2",),
    "open_inference.proto": ("tritonclient.grpc.service_pb2",),
    "health.proto": ("grpc_health.v1.health_pb2",),
    "reflection_v1alpha.proto": ("grpc_reflection.v1alpha.reflection_pb2",),
}


def test_the_compiled_contracts_are_those_that_are_written(tmp_path: Path) -> None:
    program = RPC.parent.parent / "scripts" / "make_contracts.py"
    command = [sys.executable, str(program), str(tmp_path / "again.binpb")]
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS)

    again, kept = (
        FileDescriptorSet.FromString(path.read_bytes())
        for path in (tmp_path / "again.binpb", RPC / "contracts.binpb")
    )
    assert again == kept, "make contracts writes them again"


@pytest.mark.parametrize("file", PUBLISHED)
def test_every_name_and_number_is_that_of_the_published_contract(file: str) -> None:
    for module in PUBLISHED[file]:
        importlib.import_module(module)
    ours = pool().FindFileByName(file)

    for message in ours.message_types_by_name.values():
        compare_messages(message)
    for enum in ours.enum_types_by_name.values():
        compare_enums(enum)
    for service in ours.services_by_name.values():
        theirs = Default().FindServiceByName(service.full_name)
        for method in service.methods:
            assert signature_of(method) == signature_of(theirs.methods_by_name[method.name])


def test_both_versions_of_reflection_are_the_same_but_for_their_names() -> None:
    older, newer = (pool().FindFileByName(f"reflection_{version}.proto") for version in ("v1alpha", "v1"))

    for name, message in older.message_types_by_name.items():
        assert fields_of(message) == {
            field: (number, kind, label, typed and typed.replace(".v1.", ".v1alpha."))
            for field, (number, kind, label, typed) in fields_of(newer.message_types_by_name[name]).items()
        }


def compare_messages(message: Any) -> None:
    theirs = fields_of(Default().FindMessageTypeByName(message.full_name))
    for name, field in fields_of(message).items():
        assert field == theirs[name], f"{message.full_name}.{name}"
    for nested in message.nested_types:
        if not nested.GetOptions().map_entry:
            compare_messages(nested)
    for enum in message.enum_types:
        compare_enums(enum)


def compare_enums(enum: Any) -> None:
    theirs = Default().FindEnumTypeByName(enum.full_name).values_by_name
    for value in enum.values:
        assert value.number == theirs[value.name].number, f"{enum.full_name}.{value.name}"


def fields_of(message: Any) -> dict[str, tuple[int, int, bool, str | None]]:
    """Number, type, whether there are several, and of which message or enum."""
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            getattr(field.message_type or field.enum_type, "full_name", None),
        )
        for field in message.fields
    }


def signature_of(method: Any) -> tuple[str, str, bool, bool]:
    return (
        method.input_type.full_name,
        method.output_type.full_name,
        method.client_streaming,
        method.server_streaming,
    )
