"""Keeps over a restart where labels were moved to by orders: one small file in the state directory of the server."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotdelta.chain import Disk
from hotdelta.chain.store.small_file import replace_file
from hotdelta.errors import ConfigurationError
from hotdelta.logs import event

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
LABELS_FILE = "labels.json"


@dataclass(frozen=True, slots=True)
class Moved:
    """A label that an order has moved: where it is, where it was before, and what the settings said then."""

    model: str
    before: str
    configured: str


class LabelBook:
    """What was ordered holds until the settings say something else than they did then."""

    def __init__(self, state_dir: Path | None, *, disk: Disk | None = None) -> None:
        """Raises ConfigurationError when the file cannot be read: without it a label could be at the wrong model."""
        self._path = state_dir / LABELS_FILE if state_dir is not None else None
        self._disk = disk or Disk()
        self.moved: dict[str, Moved] = {}
        if self._path is not None:
            self.moved = _read(self._path)
        self._kept = dict(self.moved)

    @property
    def is_kept(self) -> bool:
        """Whether a restart would know what was ordered."""
        return self.moved == self._kept

    def places(self, configured: Mapping[str, str], models: set[str | None]) -> dict[str, str]:
        """Which model each label is at."""
        places = {}
        for label, name in configured.items():
            moved = self.moved.get(label)
            places[label] = name
            if moved is not None and moved.configured == name:
                if moved.model in models:
                    places[label] = moved.model
                else:
                    phrase = "the model that a label was moved to is not here"
                    event(logger, logging.WARNING, phrase, label=label, missing=moved.model, model=name)
        return places

    def forget_others(self, configured: Mapping[str, str]) -> None:
        """What the settings have said anew since."""
        self.moved = {
            label: moved for label, moved in self.moved.items() if configured.get(label) == moved.configured
        }

    def keep(self) -> None:
        """Make it durable. It holds even when that fails, which is logged and shows in `is_kept`. Blocks."""
        if self._path is None or self.moved == self._kept:
            return
        moved = dict(self.moved)
        document = {
            "format_version": FORMAT_VERSION,
            "labels": {
                label: {"model": place.model, "before": place.before, "configured": place.configured}
                for label, place in moved.items()
            },
        }
        try:
            self._disk.make_directory(self._path.parent)
            replace_file(self._disk, self._path, json.dumps(document, indent=1).encode() + b"\n")
        except OSError as error:
            phrase = "labels cannot be kept, a restart forgets this order"
            event(logger, logging.ERROR, phrase, path=self._path, reason=error.strerror)
            return
        self._kept = moved


def _read(path: Path) -> dict[str, Moved]:
    try:
        document = json.loads(path.read_bytes())
        if document["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format_version is {document['format_version']}, not {FORMAT_VERSION}")
        return {
            str(label): Moved(str(place["model"]), str(place["before"]), str(place["configured"]))
            for label, place in document["labels"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error!r}", hint="remove it to begin with the labels of the settings"
        ) from error
