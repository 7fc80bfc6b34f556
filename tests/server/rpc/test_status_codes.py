from __future__ import annotations

import grpc
import pytest

from hotdelta.errors import HotdeltaError, NotReadyError, PositionNotReachedError, RequestError
from server.http.error_responses import STATUS
from server.rpc.status_codes import CODES, StatusCode, code_of, told_beside
from tests.server.http.test_error_responses import OWN

# What retrying cannot help, because the request itself is at fault.
OF_THE_CALLER = {
    StatusCode.INVALID_ARGUMENT,
    StatusCode.NOT_FOUND,
    StatusCode.FAILED_PRECONDITION,
    StatusCode.PERMISSION_DENIED,
    StatusCode.UNAUTHENTICATED,
    StatusCode.RESOURCE_EXHAUSTED,
}


@pytest.mark.parametrize("kind", OWN)
def test_every_error_has_a_code_of_its_own(kind: type[HotdeltaError]) -> None:
    assert kind in CODES


@pytest.mark.parametrize("kind", OWN)
def test_only_errors_of_the_caller_are_told_as_his(kind: type[HotdeltaError]) -> None:
    assert (CODES[kind] in OF_THE_CALLER) == issubclass(kind, RequestError)


@pytest.mark.parametrize("kind", OWN)
def test_what_may_be_asked_again_by_itself_is_the_same_as_by_http(kind: type[HotdeltaError]) -> None:
    assert (CODES[kind] is StatusCode.UNAVAILABLE) == (STATUS[kind] == 503)


def test_an_unknown_error_is_told_as_its_nearest_known_ancestor() -> None:
    class StrangeRequestError(RequestError):
        pass

    assert code_of(StrangeRequestError) is StatusCode.INVALID_ARGUMENT


def test_what_http_tells_in_headers_is_in_the_trailing_metadata() -> None:
    not_reached = PositionNotReachedError("not yet", wanted="3.17", live="3.16")

    assert told_beside(not_reached) == (("x-model-version", "3.16"),)
    assert told_beside(NotReadyError("no model is served yet")) == (("retry-after", "1"),)
    assert told_beside(RequestError("wrong")) == ()


def test_the_numbers_are_those_of_grpc() -> None:
    assert {code.name: code for code in StatusCode}.items() <= {
        code.name: code.value[0] for code in grpc.StatusCode
    }.items()
