"""Several commits on their way here at once, so that the next ones arrive while one is applied."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from hotdelta.chain.disk import Disk
from hotdelta.chain.format.manifest import Kind, Manifest
from hotdelta.remote.arrivals import ArrivedFiles
from hotdelta.remote.mirror.choice import Key, Way, key_of

# Deltas that are fetched at once, and how many bytes of them; a larger one is fetched alone.
_DELTAS_AHEAD = 8
_BYTES_AHEAD = 256 * 2**20

Fetch = Callable[[Manifest, bytes], ArrivedFiles | None]


class FetchAhead:
    """Fetches by `fetch`, in threads of its own. For one thread; `when_done` is called whenever something has ended."""

    def __init__(self, fetch: Fetch, *, disk: Disk, when_done: Callable[[], None], name: str) -> None:
        self._fetch = fetch
        self._disk = disk
        self._when_done = when_done
        # A full takes long, and must not hold deltas back.
        self._lanes = {
            Kind.FULL: ThreadPoolExecutor(1, thread_name_prefix=f"{name}-fulls"),
            Kind.DELTA: ThreadPoolExecutor(_DELTAS_AHEAD, thread_name_prefix=f"{name}-deltas"),
        }
        self._under_way: dict[Key, tuple[Manifest, Future[ArrivedFiles | None]]] = {}

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """What is on its way here, or has arrived and was not taken."""
        return tuple(manifest for manifest, _ in self._under_way.values())

    def has_room_for(self, manifest: Manifest) -> bool:
        others = [other for other in self.manifests if other.kind is manifest.kind]
        if manifest.kind is Kind.FULL:
            return not others
        taken = sum(other.serving_bytes for other in others)
        return not others or (len(others) < _DELTAS_AHEAD and taken + manifest.serving_bytes <= _BYTES_AHEAD)

    def is_under_way(self, manifest: Manifest) -> bool:
        return key_of(manifest) in self._under_way

    def begin(self, manifest: Manifest, content: bytes) -> None:
        future = self._lanes[manifest.kind].submit(self._fetch, manifest, content)
        self._under_way[key_of(manifest)] = manifest, future
        future.add_done_callback(lambda _: self._when_done())

    def is_done(self, manifest: Manifest) -> bool:
        found = self._under_way.get(key_of(manifest))
        return found is not None and found[1].done()

    def take(self, manifest: Manifest) -> ArrivedFiles | None:
        """What has arrived; None when it was here already. Raises what fetching it raised."""
        return self._under_way.pop(key_of(manifest))[1].result()

    def drop_others(self, ways: tuple[Way, ...]) -> None:
        """Let go of what arrived and is not wanted any more; what is still on its way is let go of when it is here."""
        wanted = {key_of(manifest) for way in ways for manifest in way}
        for key, (_, future) in tuple(self._under_way.items()):
            if key not in wanted and (future.cancel() or future.done()):
                del self._under_way[key]
                self._abandon(future)

    def close(self) -> None:
        """Waits for what cannot be interrupted: a piece of a file, at most."""
        for lane in self._lanes.values():
            lane.shutdown(wait=False, cancel_futures=True)
        for lane in self._lanes.values():
            lane.shutdown(wait=True)
        for _, future in self._under_way.values():
            self._abandon(future)
        self._under_way.clear()

    def _abandon(self, future: Future[ArrivedFiles | None]) -> None:
        if future.cancelled() or future.exception() is not None:
            return
        arrived = future.result()
        if arrived is not None:
            arrived.abandon(disk=self._disk)
