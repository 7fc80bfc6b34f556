"""A model whose chain, or exports, are in a store: what follows them here, and the mirrors that bring them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotdelta.chain import Manifest, Node, Position, SignatureSpec, SigningKey
from hotdelta.errors import StoreError
from hotdelta.remote.commit_log import CommitLog
from hotdelta.remote.mirror.choice import Following
from hotdelta.remote.mirror.exports import ExportMirror
from hotdelta.remote.mirror.mirror import Mirror
from hotdelta.remote.mirror.place import default_root, directory_for
from hotdelta.remote.mirror.settings import MirrorSettings
from hotdelta.remote.mirror.status import MirrorStatus
from hotdelta.remote.stores.address import Address
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from server.model_settings import ModelSettings
from server.models.fleet_orders import FleetOrders
from server.served_model import Array, ServedModel, ServedVersion

if TYPE_CHECKING:
    from loader import LoaderStatus
    from loader.update_figures import UpdateFigures

# Called with a manifest that has come, or with None when it may be anything.
LookAgain = Callable[[Path | None], None]

# When a commit was found where it came from.
FoundAt = Callable[[Manifest], float | None]

_DEGRADED = "degraded"


def _nowhere(_: Manifest) -> None:
    """Of a commit that was made in the directory that is followed."""
    return


@dataclass(frozen=True, slots=True)
class LocalPlaces:
    """What a model follows on this machine, and where it begins."""

    export_dir: Path
    checkpoint_dir: Path | None
    pin: Position | None = None
    found_at: FoundAt = _nowhere


MakeLocal = Callable[[LocalPlaces], tuple[ServedModel, LookAgain]]


class MirroredModel:
    """Hands everything on to the model that follows the local directories. Its mirrors live as long as it does."""

    def __init__(
        self, model: ServedModel, mirrors: Sequence[Mirror | ExportMirror], orders: FleetOrders | None = None
    ) -> None:
        self._model = model
        self._mirrors = tuple(mirrors)
        self._orders = orders
        if orders is not None:
            orders.obey(model)

    @property
    def stores(self) -> tuple[MirrorStatus, ...]:
        """How its stores stand. Cheap."""
        return tuple(mirror.status() for mirror in self._mirrors)

    @property
    def figures(self) -> UpdateFigures:
        return self._model.figures

    @property
    def is_alive(self) -> bool:
        return self._model.is_alive and all(mirror.is_alive for mirror in self._mirrors)

    def start(self) -> None:
        for mirror in self._mirrors:
            mirror.start()
        self._model.start()
        if self._orders is not None:
            self._orders.start()

    def stop(self) -> None:
        try:
            if self._orders is not None:
                self._orders.stop()
            self._model.stop()
        finally:
            for mirror in self._mirrors:
                mirror.stop()

    @property
    def signatures(self) -> Mapping[str, SignatureSpec]:
        return self._model.signatures

    @property
    def export(self) -> tuple[str, int] | None:
        return self._model.export

    def commits(self, newest: int) -> Sequence[Manifest]:
        return self._model.commits(newest)

    def status(self) -> LoaderStatus:
        return self._model.status()

    def predict(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], ServedVersion]:
        return self._model.predict(signature, feeds)

    def predict_at_once(
        self, signature: str, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], ServedVersion] | None:
        return self._model.predict_at_once(signature, feeds)

    def rollback(self, position: Position) -> Node:
        return self._model.rollback(position)

    def rollback_deltas(self, deltas: int) -> Node:
        return self._model.rollback_deltas(deltas)

    def pin(self, position: Position | None) -> Node:
        return self._model.pin(position)

    def resume(self) -> Node | None:
        return self._model.resume()

    def release(self, position: Position) -> Node | None:
        return self._model.release(position)


def stores_of(model: ServedModel) -> tuple[MirrorStatus, ...]:
    """None for a model whose directories are on this machine."""
    return model.stores if isinstance(model, MirroredModel) else ()


def make_mirrored(
    settings: ModelSettings,
    make_local: MakeLocal,
    *,
    told: dict[str, str],
) -> ServedModel:
    """`make_local` makes what follows local directories, and says how to wake it.

    Raises ConfigurationError for an address that cannot be used, and StoreError when its store refuses us. One that is
    only away is waited for.
    """
    stores = {
        name: _open(place)
        for name in ("export_dir", "checkpoint_dir")
        if isinstance(place := getattr(settings, name), Address)
    }
    if not stores:
        given = _local(settings.export_dir), _local_or_none(settings.checkpoint_dir)
        return make_local(LocalPlaces(*given, settings.pin))[0]
    root = settings.mirror_dir or default_root()
    directories = {
        # Of one address both may be told: a chain and its exports.
        name: directory_for(root, store.address) / ("exports" if name == "export_dir" else "chain")
        for name, store in stores.items()
    }
    mirror_settings = MirrorSettings(poll_seconds=settings.hint_seconds, max_bytes=settings.mirror_bytes)
    orders = _orders_of(settings, stores.get("checkpoint_dir"))
    made: list[tuple[ServedModel, LookAgain]] = []
    mirrors: list[Mirror | ExportMirror] = []
    found_at: FoundAt = _nowhere

    def wake(manifest: Path | None) -> None:
        for _, look_again in made:
            look_again(manifest)

    try:
        if (store := stores.get("export_dir")) is not None:
            mirrors.append(
                ExportMirror(
                    store,
                    directories["export_dir"],
                    mirror_settings,
                    served=lambda: made[0][0].status().export_version if made else None,
                    on_arrival=lambda: wake(None),
                    told=told,
                )
            )
        if (store := stores.get("checkpoint_dir")) is not None:
            key = SigningKey.read(settings.signing_key_file) if settings.signing_key_file else None
            chain = Mirror(
                store,
                directories["checkpoint_dir"],
                mirror_settings,
                follower=lambda: following_of(made[0][0].status(), orders) if made else Following(),
                on_arrival=wake,
                distrust=key.distrust if key else None,
                told=told,
            )
            mirrors.append(chain)
            found_at = chain.seen_at
        export_dir = directories.get("export_dir")
        checkpoint_dir = directories.get("checkpoint_dir")
        places = LocalPlaces(
            export_dir if export_dir is not None else _local(settings.export_dir),
            checkpoint_dir if checkpoint_dir is not None else _local_or_none(settings.checkpoint_dir),
            (orders.first() if orders is not None else None) or settings.pin,
            found_at,
        )
        made.append(make_local(places))
    except BaseException:
        for mirror in mirrors:
            mirror.stop()
        raise
    return MirroredModel(made[0][0], mirrors, orders)


def _orders_of(settings: ModelSettings, store: Store | None) -> FleetOrders | None:
    if settings.orders_key_file is None or store is None:
        return None
    return FleetOrders(store, SigningKey.read(settings.orders_key_file), state_dir=settings.state_dir)


def following_of(status: LoaderStatus, orders: FleetOrders | None = None) -> Following:
    """What the mirror of its chain has to know of a model. What it is ordered to be at may have to be brought first."""
    takes_fulls_only = status.is_ready and status.is_incremental is False
    is_stuck = str(status.state) == _DEGRADED or (not status.is_ready and bool(status.quarantined))
    pin = status.pinned or (orders.wanted if orders is not None else None)
    return Following(status.node, pin, wants_full=takes_fulls_only or is_stuck)


def _open(address: Address) -> Store:
    """Asked one question, so that what is wrong is heard of at the start. Raises ConfigurationError, StoreError."""
    store = open_store(str(address))
    try:
        CommitLog(store).head()
    except StoreError as error:
        if not error.retryable:
            raise
    return store


def _local(place: Path | Address) -> Path:
    if isinstance(place, Address):
        raise TypeError(f"{place} is not on this machine")
    return place


def _local_or_none(place: Path | Address | None) -> Path | None:
    return None if place is None else _local(place)
