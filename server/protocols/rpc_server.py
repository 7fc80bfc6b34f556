"""Puts the protocols that are spoken by gRPC on one port."""

from __future__ import annotations

from server.figures import RequestFigures
from server.http.connection_limits import BufferedBytes
from server.models.models import Models
from server.protocols.open_inference.rpc import OpenInferenceCalls
from server.protocols.rpc import Health
from server.protocols.tensorflow_serving.rpc import TensorFlowServingCalls
from server.rpc.calls import CallLimits, Calls
from server.rpc.listening import RpcServer
from server.rpc.reflection import reflection_services
from server.settings import Settings
from server.tokens import PredictTokens


def create_rpc_server(
    settings: Settings,
    models: Models,
    buffered: BufferedBytes,
    requests: dict[str, RequestFigures],
    tokens: PredictTokens | None,
) -> RpcServer:
    """`buffered` counts what waits, with that of HTTP; in `requests` calls are counted by protocol; `tokens`: what
    callers have to send; None: nothing.
    """
    asked = (
        *TensorFlowServingCalls(models, max_tensor_bytes=settings.max_body_bytes).services(),
        OpenInferenceCalls(models).service(),
    )
    health = Health(models, tuple(each.name for each in asked)).service()
    services = (*asked, health)
    reflection = reflection_services(each.name for each in services)
    # Streams wait for ever, and need no token: predictions keep the larger part.
    max_streams = max(1, settings.max_connections // 4)
    limits = CallLimits(settings.client_timeout_seconds, max_streams)
    return RpcServer(settings, Calls((*services, *reflection), limits, requests, tokens), buffered)
