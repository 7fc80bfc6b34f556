"""Which models run, and how that changes: all of a change, or nothing and the reason."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from hotdelta.directory_lock import STATE_WORDING, LockedDirectory
from hotdelta.errors import ConfigurationError, HotdeltaError, RequestError
from hotdelta.logs import event
from hotdelta.remote.stores.address import Address
from server.configuration import Configuration, model_settings
from server.model_settings import ModelSettings
from server.models.entry import Entry, UnusableModel
from server.models.label_book import LabelBook, Moved
from server.models.models import Models
from server.models.takeover import require_caught_up, require_same_calls
from server.served_model import ServedModel

logger = logging.getLogger(__name__)

MakeModel = Callable[[ModelSettings], ServedModel]

GOING_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Change:
    """The names of models that came and went."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


class Fleet:
    """Starts and stops models, and moves labels between them. Belongs to the event loop; one change at a time.

    `make_model` blocks, and may refuse. `reread` gives the configuration anew, where there is a file. `after_removal`
    is called, in a thread, when a model that was removed has come to rest (gc.freeze).
    """

    def __init__(
        self,
        configuration: Configuration,
        make_model: MakeModel,
        *,
        reread: Callable[[], Configuration] | None = None,
        after_removal: Callable[[], None] = lambda: None,
    ) -> None:
        """Of several models one that cannot be made is listed with the reason, and the others are served."""
        self._configuration = configuration
        self._said_labels = configuration.labels
        self._make_model = make_model
        self._reread = reread
        self._after_removal = after_removal
        self._changing = asyncio.Lock()
        self._leaving: dict[Entry, asyncio.Task[None]] = {}
        state_dir = configuration.general.get("state_dir")
        # That of one model is locked by what follows its chain.
        self._lock = None if configuration.is_one_model or state_dir is None else _locked(state_dir)
        self._book = LabelBook(state_dir)
        self.models = Models(
            [self._first(settings) for settings in configuration.models],
            labels=self._book.places(configuration.labels, _names(configuration)),
            default_model=configuration.default_model,
            is_one_model=configuration.is_one_model,
            ready_wait_seconds=configuration.server.ready_wait_seconds,
        )

    def start(self) -> None:
        for entry in self.models.entries():
            entry.start()

    async def stop(self, seconds: float) -> bool:
        """Whether all threads have ended. A prediction, or the loading of a large export, may take much longer."""
        deadline = time.monotonic() + seconds
        for task in self._leaving.values():
            task.cancel()
        stopping = [
            thread for entry in (*self.models.entries(), *self._leaving) for thread in entry.begin_to_stop()
        ]
        for thread in stopping:
            await asyncio.to_thread(thread.join, max(0.0, deadline - time.monotonic()))
        if self._lock is not None:
            self._lock.close()
        return not any(thread.is_alive() for thread in stopping)

    async def reload(self) -> Change:
        """To what the file says now. Raises ConfigurationError, and then nothing has changed."""
        if self._reread is None:
            raise RequestError("this server has no file to read again", hint="start it with --config")
        async with self._changing:
            wanted = await asyncio.to_thread(self._reread)
            change = await self._become(wanted, self._labels_in(wanted))
            self._said_labels = wanted.labels
            self._book.forget_others(wanted.labels)
            await asyncio.to_thread(self._book.keep)
            return change

    async def load(self, name: str, given: Mapping[str, Any]) -> Change:
        """One more model, with settings as the file has them; paths are those of `loadable_dir`, and below it.

        A restart, and the next reading of the file, forget it. Raises ConfigurationError, RequestError.
        """
        self._require_several()
        async with self._changing:
            now = self._configuration
            directory = now.server.loadable_dir
            if directory is None:
                raise RequestError(
                    "orders add no models to this server",
                    hint="start it with --loadable-dir, or use its file",
                )
            settings = model_settings(name, given, now.general, directory)
            _require_below(directory, settings, given)
            return await self._become_with((*now.models, settings))

    async def unload(self, name: str) -> Change:
        """One model less. Raises ConfigurationError, RequestError."""
        self._require_several()
        async with self._changing:
            now = self._configuration
            rest = tuple(model for model in now.models if model.model_name != name)
            if len(rest) == len(now.models):
                raise RequestError(f"there is no model {name!r}", hint="GET /models lists them")
            return await self._become_with(rest)

    async def move_label(self, label: str, name: str) -> bool:
        """All requests from now on; refused when clients would notice more than other answers. The way back is open
        however far behind that model is. Returns whether a restart would know. Raises RequestError.
        """
        async with self._changing:
            now = self.models.labels.get(label)
            if now is None:
                raise RequestError(f"there is no label {label!r}", hint="the settings say which there are")
            if name not in _names(self._configuration):
                raise RequestError(f"there is no model {name!r}", hint="GET /models lists them")
            moved = self._book.moved.get(label)
            if name != now:
                self._require_takeover(now, name, is_way_back=moved is not None and moved.before == name)
                self.models.move_label(label, name)
                self._book.moved[label] = Moved(name, before=now, configured=self._said_labels[label])
            await asyncio.to_thread(self._book.keep)
            return self._is_label_kept(label, name)

    def before(self, label: str) -> str | None:
        """Where a label was before it was moved."""
        moved = self._book.moved.get(label)
        return moved.before if moved is not None else None

    def _is_label_kept(self, label: str, name: str) -> bool:
        return self._said_labels[label] == name or self._book.is_kept

    def _require_takeover(self, now: str, name: str, *, is_way_back: bool) -> None:
        old, new = self.models.entry(now), self.models.entry(name)
        status = new.status()
        if not is_way_back or not status.is_ready:
            require_caught_up(name, status)
        require_same_calls(name, new.plane.signatures, now, old.plane.signatures)

    def _require_several(self) -> None:
        if self._configuration.is_one_model:
            raise RequestError(
                "this server has one model that has no name", hint="start it with --model or --config"
            )

    async def _become_with(self, models: tuple[ModelSettings, ...]) -> Change:
        """Labels are where they are: one whose model is not among these is a ConfigurationError."""
        labels = self.models.labels
        return await self._become(replace(self._configuration, models=models, labels=labels), labels)

    async def _become(self, wanted: Configuration, labels: Mapping[str, str]) -> Change:
        """Decide, make what is new, change over; what goes has time for what it was asked."""
        _require_same_server(self._configuration, wanted)
        running = {entry.settings.model_name: entry for entry in self.models.entries()}
        plan = _plan(running, wanted)
        await self._wait_for_leaving({settings.model_name for settings in plan.new})
        made = await asyncio.to_thread(self._make_all, plan.new)
        # One that could not be made before takes nothing from the others when it still cannot.
        made += [await asyncio.to_thread(self._first, settings) for settings in plan.broken]
        # From here on nothing fails, and nothing waits: no request sees half of it.
        by_name = {entry.settings.model_name: entry for entry in (*plan.kept, *made)}
        for entry in made:
            entry.start()
        entries = [by_name[settings.model_name] for settings in wanted.models]
        self.models.put(entries, labels=labels, default_model=wanted.default_model)
        self._configuration = wanted
        for name, entry in running.items():
            if by_name.get(name) is not entry:
                self._leaving[entry] = asyncio.create_task(self._retire(entry))
        added = tuple(str(entry.name) for entry in made if not isinstance(entry.model, UnusableModel))
        removed = tuple(str(name) for name in running if name not in by_name)
        event(
            logger,
            logging.INFO,
            "models have changed",
            added=", ".join(added) or "none",
            removed=", ".join(removed) or "none",
        )
        return Change(added, removed)

    async def _wait_for_leaving(self, names: set[str | None]) -> None:
        """One of the same name still has its directories. Raises ConfigurationError when it takes its time."""
        leaving = {task for entry, task in self._leaving.items() if entry.settings.model_name in names}
        if leaving:
            await asyncio.wait(leaving, timeout=GOING_SECONDS)
        for entry in self._leaving:
            if entry.settings.model_name in names:
                seconds = self._configuration.server.stop_seconds
                raise ConfigurationError(
                    f"{entry.settings.model_name!r} is still going: a request that it was asked is not answered yet",
                    hint=f"try again in {seconds:g} seconds",
                )

    def _labels_in(self, wanted: Configuration) -> dict[str, str]:
        """Labels stay where orders have put them, unless the settings say something new: that is an order, too."""
        now, names, labels = _names(self._configuration), _names(wanted), {}
        for label, name in wanted.labels.items():
            place = self.models.labels.get(label)
            if place is None or self._said_labels.get(label) == name:
                labels[label] = place or name
            else:
                if place != name:
                    if name not in now:
                        raise ConfigurationError(
                            f"the label {label!r} cannot be at {name!r}, which is only being added",
                            hint="add the model first, and move the label when it is ready",
                        )
                    self._require_takeover(place, name, is_way_back=self.before(label) == name)
                labels[label] = name
            if labels[label] not in names:
                raise ConfigurationError(
                    f"the model {labels[label]!r} cannot go: the label {label!r} is at it",
                    hint="move the label first",
                )
        return labels

    def _first(self, settings: ModelSettings) -> Entry:
        if self._configuration.is_one_model:
            return self._entry(settings, self._make_model(settings))
        try:
            return self._entry(settings, self._make_model(settings))
        except HotdeltaError as error:
            event(logger, logging.ERROR, "a model cannot be served", model=settings.model_name, reason=error)
            return self._entry(settings, UnusableModel(error))

    def _make_all(self, wanted: Sequence[ModelSettings]) -> list[Entry]:
        """All of them, or none. Raises HotdeltaError."""
        made: list[Entry] = []
        try:
            for settings in wanted:
                made.append(self._entry(settings, self._make_model(settings)))
        except BaseException:
            for entry in made:
                entry.model.stop()
            raise
        return made

    def _entry(self, settings: ModelSettings, model: ServedModel) -> Entry:
        return Entry(
            settings,
            model,
            max_wait_ms=self._configuration.server.max_wait_ms,
            is_named_in_answers=not self._configuration.is_one_model,
        )

    async def _retire(self, entry: Entry) -> None:
        """Nobody finds it any more; who has found it gets his answer."""
        await entry.plane.come_to_rest(self._configuration.server.stop_seconds)
        loop, is_gone, stopping = asyncio.get_running_loop(), asyncio.Event(), entry.begin_to_stop()

        def finish() -> None:
            for thread in stopping:
                thread.join()
            self._after_removal()
            # Closed: the server has ended before the model has.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(is_gone.set)

        # A thread that nobody waits for when the process ends: a prediction may take any time.
        threading.Thread(target=finish, name="stop", daemon=True).start()
        await is_gone.wait()
        del self._leaving[entry]
        event(logger, logging.INFO, "model is gone", model=entry.name)


def _locked(state_dir: Path) -> LockedDirectory:
    """Labels are kept there: of two servers that write them, each would forget where the other's are."""
    return LockedDirectory(state_dir, STATE_WORDING)


def _require_below(directory: Path, settings: ModelSettings, given: Iterable[str]) -> None:
    """Who may give orders may not choose any directory of the machine. Raises RequestError."""
    for key in given:
        path = getattr(settings, key)
        if isinstance(path, Address):
            raise RequestError(f"{key} is in a store, not below --loadable-dir", hint="use the file")
        if isinstance(path, Path) and not path.resolve().is_relative_to(directory.resolve()):
            raise RequestError(f"{key} is not below --loadable-dir", hint="move it there, or use the file")


def _names(configuration: Configuration) -> set[str | None]:
    return {model.model_name for model in configuration.models}


@dataclass(frozen=True, slots=True)
class _Plan:
    """What stays as it is, what is to be made, and what could not be made before."""

    kept: tuple[Entry, ...]
    new: tuple[ModelSettings, ...]
    broken: tuple[ModelSettings, ...]


def _plan(running: Mapping[str | None, Entry], wanted: Configuration) -> _Plan:
    """Raises ConfigurationError when a model that runs would have other settings."""
    kept: list[Entry] = []
    new: list[ModelSettings] = []
    broken: list[ModelSettings] = []
    for settings in wanted.models:
        entry = running.get(settings.model_name)
        if entry is None:
            new.append(settings)
        elif isinstance(entry.model, UnusableModel):
            broken.append(settings)
        elif entry.settings == settings:
            kept.append(entry)
        else:
            raise _changed(entry.settings, settings)
    return _Plan(tuple(kept), tuple(new), tuple(broken))


def _require_same_server(now: Configuration, wanted: Configuration) -> None:
    changed = _differing(now.server, wanted.server)
    if changed:
        raise ConfigurationError(
            f"{', '.join(changed)} cannot change while the server runs", hint="restart it, or put it back"
        )


def _changed(now: ModelSettings, wanted: ModelSettings) -> ConfigurationError:
    return ConfigurationError(
        f"the settings of {now.model_name!r} cannot change while it is served: {', '.join(_differing(now, wanted))}",
        hint="put them back, or add it under another name and move its label",
    )


def _differing(now: Any, wanted: Any) -> list[str]:
    return [
        setting.name for setting in fields(now) if getattr(now, setting.name) != getattr(wanted, setting.name)
    ]
