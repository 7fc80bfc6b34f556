"""POST /predict: parse, one call, shape the answer."""

from __future__ import annotations

from collections.abc import Callable

from starlette.responses import Response
from starlette.types import Scope

from server.predict.answer import write_answer
from server.predict.plane import Plane
from server.predict.request import read_request
from server.served_model import ServedVersion

PROTOCOL = "hotdelta"
VERSION_HEADER = "X-Model-Version"
MODEL_HEADER = "X-Model-Name"


class PredictRoute:
    """Our own dialect. `find`: the way to the model that a request means. Belongs to the event loop."""

    def __init__(self, find: Callable[[Scope], Plane]) -> None:
        self._find = find

    async def respond(self, scope: Scope, body: bytes) -> Response:
        plane = self._find(scope)
        asked = read_request(body, plane.signatures, max_wait_ms=plane.max_wait_ms)
        outputs, version = await plane.predict(asked, protocol=PROTOCOL)
        return answer_of(write_answer(outputs, version, rows=asked.rows), version, plane.told_name)


def answer_of(content: bytes, version: ServedVersion, model_name: str | None) -> Response:
    """JSON that came from a position of a model, which every client finds in the headers."""
    headers = {} if version.position is None else {VERSION_HEADER: str(version.position)}
    if model_name is not None:
        headers[MODEL_HEADER] = model_name
    return Response(content, headers=headers, media_type="application/json")
