"""POST /predict: parse, one call, shape the answer."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Scope

from server.predict.answer import write_answer
from server.predict.data_plane import DataPlane
from server.predict.request import read_request
from server.served_model import ServedVersion

PROTOCOL = "hotdelta"
VERSION_HEADER = "X-Model-Version"


class PredictRoute:
    """Our own dialect. Belongs to the event loop."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane

    async def respond(self, _scope: Scope, body: bytes) -> Response:
        asked = read_request(body, self._plane.signatures, max_wait_ms=self._plane.max_wait_ms)
        outputs, version = await self._plane.predict(asked, protocol=PROTOCOL)
        return answer_of(write_answer(outputs, version, rows=asked.rows), version)


def answer_of(content: bytes, version: ServedVersion) -> Response:
    """JSON that came from a position, which every client finds in the headers."""
    headers = {} if version.position is None else {VERSION_HEADER: str(version.position)}
    return Response(content, headers=headers, media_type="application/json")
