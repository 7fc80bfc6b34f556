"""What the server needs of a loader: a model that answers, and that says what it is. Nothing here is TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy.typing as npt

from hotdelta.chain import Manifest, Node, Position, SignatureSpec

if TYPE_CHECKING:
    from loader import LoaderStatus
    from loader.update_figures import UpdateFigures

Array = npt.NDArray[Any]


class ServedVersion(Protocol):
    """The state that a prediction came from; an export of a model in memory has no position."""

    @property
    def position(self) -> Position | None: ...

    @property
    def step(self) -> int: ...

    @property
    def export_version(self) -> int: ...


class ServedModel(Protocol):
    """`loader.Loader` or `StaticLoader`, as far as the server knows it. Any thread may call any of it."""

    @property
    def figures(self) -> UpdateFigures:
        """What its updates have come to."""

    @property
    def is_alive(self) -> bool:
        """Whether the thread that updates the model runs."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        """What a client may call now, never what updates the model; empty while nothing is served."""

    @property
    def export(self) -> tuple[str, int] | None:
        """The name and the version of the export that is served now; None while nothing is."""

    def commits(self, newest: int) -> Sequence[Manifest]:
        """So many of the newest that it knows of. Cheap, too."""

    def status(self) -> LoaderStatus:
        """Cheap: nothing is read or waited for."""

    def predict(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], ServedVersion]:
        """Blocks. Raises RequestError, NotReadyError or PredictionError."""

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], ServedVersion] | None:
        """The same, and only for as long as the model needs: None, and nothing was asked, while an update goes on."""

    def rollback(self, position: Position) -> Node:
        """Blocks, as all orders do. They return what is served then; RequestError: nothing has changed."""

    def rollback_deltas(self, deltas: int) -> Node: ...

    def pin(self, position: Position | None) -> Node: ...

    def resume(self) -> Node | None: ...

    def release(self, position: Position) -> Node | None: ...
