"""The models as they are seen from a front-end: which one a request means, and the way to it."""

from __future__ import annotations

from collections.abc import Mapping

from hotdelta.chain import SignatureSpec
from hotdelta.errors import NotReadyError, UnknownModelError
from server.front.line import ModelLine
from server.front.told import Told, ToldModel
from server.models.target import Target
from server.predict.request import PredictRequest
from server.served_model import Array, ServedVersion


class ToldPlane:
    """The way to one model, as it was told when a request was read."""

    __slots__ = ("_line", "_model", "_number", "_told")

    def __init__(self, line: ModelLine, told: Told, number: int) -> None:
        self._line = line
        self._told = told
        self._number = number
        self._model = told.models[number]

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        return self._model.signatures

    @property
    def max_wait_ms(self) -> int:
        return self._model.max_wait_ms

    @property
    def told_name(self) -> str | None:
        return self._model.told_name

    async def predict(
        self, asked: PredictRequest, *, protocol: str
    ) -> tuple[Mapping[str, Array], ServedVersion]:
        """Raises OutdatedError, AnswerError."""
        signature = _signature_number(self._model, asked.signature)
        return await self._line.ask(self._told, self._number, asked, signature=signature, protocol=protocol)


def _signature_number(model: ToldModel, name: str) -> int:
    return next(number for number, known in enumerate(model.signatures) if known == name)


class ToldModels:
    """Which model a request means, by what was told last. Raises what is right when it has gone just now."""

    def __init__(self, line: ModelLine) -> None:
        self._line = line

    def knows(self, target: Target | None) -> bool:
        """Whether it can be asked from here; None is the default model. All else the model's process answers."""
        return self._find(target) is not None

    def plane(self, target: Target | None) -> ToldPlane:
        told, number = self._line.told, self._find(target)
        if number is not None:
            return ToldPlane(self._line, told, number)
        if target is None or any(model.model_name == target.name for model in told.models):
            raise NotReadyError(
                "no model is served any more", hint="GET /model/version says what it waits for"
            )
        raise UnknownModelError(
            f"there is no such model {target.name!r} any more", hint="GET /models lists them"
        )

    def _find(self, target: Target | None) -> int | None:
        told = self._line.told
        if target is not None:
            return told.find(target)
        number = told.default
        return number if number is not None and told.models[number].export is not None else None
