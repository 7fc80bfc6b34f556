"""One model that is served here, with all that is its own: what follows its chain, its queue, its threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from hotdelta.chain import Manifest, Position, SignatureSpec
from hotdelta.errors import HotdeltaError, NotReadyError
from server.model_settings import ModelSettings
from server.predict.batching import Batcher
from server.predict.data_plane import DataPlane
from server.predict.position_wait import PositionWait
from server.served_model import Array, ServedModel

if TYPE_CHECKING:
    from loader import LoaderStatus


class Entry:
    """A model and what clients call it; nothing of it is shared with another one.

    `settings.model_name` None: it has the name that its export has.
    """

    def __init__(
        self,
        settings: ModelSettings,
        model: ServedModel,
        *,
        max_wait_ms: int,
        is_named_in_answers: bool = False,
    ) -> None:
        def live_position() -> Position | None:
            node = model.status().node
            return node.position if node else None

        self.settings = settings
        self.model = model
        self._stopping: list[threading.Thread] = []
        self.batcher = Batcher(
            model.predict,
            model.predict_at_once,
            max_batch_size=settings.max_batch_size,
            max_rows=settings.max_rows,
            max_queue=settings.max_queue,
            workers=settings.predict_workers,
            timeout_seconds=settings.request_timeout_seconds,
        )
        self.plane = DataPlane(
            model,
            self.batcher,
            PositionWait(live_position),
            max_wait_ms=max_wait_ms,
            told_name=settings.model_name if is_named_in_answers else None,
        )

    @property
    def name(self) -> str | None:
        """None while nothing is served that has one."""
        if self.settings.model_name is not None:
            return self.settings.model_name
        export = self.model.export
        return None if export is None else export[0]

    def status(self) -> LoaderStatus:
        """Cheap: nothing is read or waited for."""
        return self.model.status()

    def start(self) -> None:
        """In the event loop."""
        self.model.start()
        self.batcher.start()

    def begin_to_stop(self) -> Sequence[threading.Thread]:
        """The threads in which its parts come to rest; a second call starts none. In the event loop.

        Neither waits for the other: the loader has files to write, and to remove, also while a prediction hangs.
        """
        if not self._stopping:
            stops = (self.batcher.stop, self.model.stop)
            self._stopping = [threading.Thread(target=stop, name="stop", daemon=True) for stop in stops]
            for thread in self._stopping:
                thread.start()
        return self._stopping


class UnusableModel:
    """In the place of a model that could not be made, where others go on being served: says why, and no more."""

    is_alive = True

    def __init__(self, error: HotdeltaError) -> None:
        # Only where a model was to be made: TensorFlow is there by then.
        from loader.update_figures import UpdateFigures

        self._error = error
        self.figures = UpdateFigures()

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        return {}

    @property
    def export(self) -> None:
        return None

    def status(self) -> LoaderStatus:
        from loader import LoaderStatus, State

        return LoaderStatus(State.WAITING, str(self._error), is_ready=False, are_orders_kept=False)

    def commits(self, _newest: int) -> tuple[Manifest, ...]:
        return ()

    def predict(self, _signature: str, _feeds: Mapping[str, Array]) -> NoReturn:
        self._refuse()

    def predict_at_once(self, _signature: str, _feeds: Mapping[str, Array]) -> NoReturn:
        self._refuse()

    def rollback(self, _position: Position) -> NoReturn:
        self._refuse()

    def rollback_deltas(self, _deltas: int) -> NoReturn:
        self._refuse()

    def pin(self, _position: Position | None) -> NoReturn:
        self._refuse()

    def resume(self) -> NoReturn:
        self._refuse()

    def release(self, _position: Position) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise NotReadyError(str(self._error), hint="correct that, and reload the models")
