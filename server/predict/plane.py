"""What protocols need of whoever answers: the model in this process, or the way to the process that has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from hotdelta.chain import SignatureSpec
from server.predict.request import PredictRequest
from server.served_model import Array, ServedVersion


class Plane(Protocol):
    """One model, as far as whoever reads requests and writes answers knows it. Belongs to the event loop."""

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        """What may be asked for now; empty while nothing is served."""

    @property
    def max_wait_ms(self) -> int:
        """As long as a request may wait for its position."""

    @property
    def told_name(self) -> str | None:
        """What answers say of which model they are; None where there is only one."""

    async def predict(
        self, asked: PredictRequest, *, protocol: str
    ) -> tuple[Mapping[str, Array], ServedVersion]:
        """All outputs from one state. `protocol`: under which it is counted."""
