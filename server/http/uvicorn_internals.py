"""All that hotdelta uses of uvicorn without a promise that the next release still has it. No other module may.

A subclass of `OpenHttpProtocol` works with attributes of uvicorn's protocol and of its cycle of request and response.
tests/test_private_names.py looks each of them up in the uvicorn that is installed, and names the one that is gone.
"""

from __future__ import annotations

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

__all__ = ("HIGH_WATER_LIMIT", "STATUS_LINE", "FlowControl", "OpenHttpProtocol", "RequestResponseCycle")


class OpenHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 for subclasses: `start_answer` may be replaced."""

    def start_answer(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """The turn of a request has come: call the application."""
        super()._start_asgi_task(cycle, app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self.start_answer(cycle, app)

    def stop_idle_timer(self) -> None:
        """Something came: the connection is not closed for idleness, if that was waited for."""
        self._unset_keepalive_if_required()
