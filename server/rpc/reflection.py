"""Tells tools such as grpcurl which services are here, and what their messages are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from server.rpc.calls import Call, Service
from server.rpc.messages import Message, kind, pool
from server.rpc.status_codes import StatusCode

# The second is what older tools ask; they differ in their names alone.
_PACKAGES = ("grpc.reflection.v1", "grpc.reflection.v1alpha")
_METHOD = "ServerReflectionInfo"


def reflection_services(names: Iterable[str]) -> tuple[Service, ...]:
    """To answer for the services of these names, and for themselves."""
    listed = [*names, *(f"{package}.ServerReflection" for package in _PACKAGES)]
    return tuple(_service(package, listed) for package in _PACKAGES)


def _service(package: str, listed: list[str]) -> Service:
    response = kind(f"{package}.ServerReflectionResponse")

    async def answer_all(requests: AsyncIterator[Message], _call: Call) -> AsyncIterator[Message]:
        async for request in requests:
            yield response(valid_host=request.host, original_request=request, **_answer(request, listed))

    return Service(
        f"{package}.ServerReflection", streams={_METHOD: answer_all}, needs_no_token=frozenset({_METHOD})
    )


def _answer(request: Message, listed: list[str]) -> dict[str, Any]:
    asked = request.WhichOneof("message_request")
    try:
        match asked:
            case "list_services":
                return {"list_services_response": {"service": [{"name": name} for name in listed]}}
            case "file_by_filename":
                return _files(pool().FindFileByName(request.file_by_filename))
            case "file_containing_symbol":
                return _files(pool().FindFileContainingSymbol(request.file_containing_symbol))
            case "all_extension_numbers_of_type":
                # None of the messages can be extended, but they exist.
                name = request.all_extension_numbers_of_type
                pool().FindMessageTypeByName(name)
                return {"all_extension_numbers_response": {"base_type_name": name}}
            case _:
                return _error(StatusCode.NOT_FOUND, "there are no extensions")
    except KeyError as error:
        return _error(StatusCode.NOT_FOUND, f"not known here: {error.args[0]}")


def _files(asked: Any) -> dict[str, Any]:
    """A file, and all that it is made of."""
    found: dict[str, bytes] = {}
    waiting = [asked]
    while waiting:
        file = waiting.pop()
        if file.name not in found:
            described = FileDescriptorProto()
            file.CopyToProto(described)
            found[file.name] = described.SerializeToString()
            waiting.extend(file.dependencies)
    return {"file_descriptor_response": {"file_descriptor_proto": list(found.values())}}


def _error(code: StatusCode, message: str) -> dict[str, Any]:
    return {"error_response": {"error_code": int(code), "error_message": message}}
