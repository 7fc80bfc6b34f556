from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from hotdelta.errors import HotdeltaError, NotReadyError, PositionNotReachedError, RequestError
from server.http.error_responses import STATUS, error_response, status_of


def every_error(root: type[HotdeltaError] = HotdeltaError) -> Iterator[type[HotdeltaError]]:
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)


OWN = [
    kind
    for kind in every_error()
    if kind.__module__.split(".")[0] in ("hotdelta", "loader", "server", "exporter")
]


@pytest.mark.parametrize("kind", OWN)
def test_every_error_has_a_status_of_its_own(kind: type[HotdeltaError]) -> None:
    assert kind in STATUS


@pytest.mark.parametrize("kind", OWN)
def test_only_errors_of_the_caller_are_answered_with_4xx(kind: type[HotdeltaError]) -> None:
    assert (400 <= STATUS[kind] < 500) == issubclass(kind, RequestError)


def test_an_unknown_error_answers_as_its_nearest_known_ancestor() -> None:
    class StrangeRequestError(RequestError):
        pass

    assert status_of(StrangeRequestError) == 400


def test_an_error_says_what_is_wrong_and_what_to_do() -> None:
    response = error_response(NotReadyError("no model is served yet", hint="wait"))

    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert orjson.loads(bytes(response.body)) == {"error": "no model is served yet. wait"}


def test_a_position_that_is_not_reached_tells_the_one_that_is() -> None:
    response = error_response(PositionNotReachedError("not yet", wanted="3.17", live="3.16"))

    assert (response.status_code, response.headers["X-Model-Version"]) == (409, "3.16")
    assert orjson.loads(bytes(response.body))["position"] == "3.16"
