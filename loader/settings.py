"""What a loader is told, once, at its start."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import to_directory
from hotdelta.quality_probe import Probe
from hotdelta.sanity_limits import SanitySettings

_BOUNDS = {
    "poll_seconds": (0.01, 3600),
    "late_data_seconds": (0, 3600),
    "undo_bytes": (0, 2**40),
    "full_diff_bytes": (0, 2**40),
    "slice_bytes": (4096, 2**30),
    "predict_threads": (0, 256),
    "warm_up_rows": (1, 65536),
}


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """Where to look, and how much time and memory an update may take."""

    export_dir: Path
    """Holds one directory per export version; the highest complete number is served."""
    checkpoint_dir: Path
    """The run directory of the trainer."""
    poll_seconds: float = 2.0
    """The directories are looked at this often, whatever file-system events say."""
    is_polling_only: bool = False
    """No file-system events, for network file systems that do not report changes of others."""
    late_data_seconds: float = 10.0
    """So long a manifest whose data is missing or short counts as arriving, then as broken."""
    undo_bytes: int = 256 * 2**20
    """Pre-images of recent updates are kept up to this size; the oldest go first."""
    full_diff_bytes: int = 256 * 2**20
    """A full that differs from the live model in more bytes than this is loaded into a second one, as an export is."""
    slice_bytes: int = 8 * 2**20
    """A full is read and compared in slices of this size."""
    predict_threads: int = 0
    """Threads that share the operations of one prediction; 0 runs each in the thread that asks (fastest)."""
    warm_up_rows: int = 1
    """The largest batch that requests are put together to: none of them is the first of its kind after the swap."""
    sanity: SanitySettings = field(default_factory=SanitySettings)
    """What the values of an update may look like; what does not is quarantined."""
    probe: Probe | None = None
    """Requests that the model has to answer well enough after every update; one that it does not is undone."""
    pin: Position | None = None
    """Serve exactly this position until resumed."""
    state_dir: Path | None = None
    """Keeps orders (rollback, pin, release) and statistics of updates over a restart; without it both are forgotten."""
    signing_key_file: Path | None = None
    """With a key only manifests that are signed with it are used, and files are read from private copies."""
    tensorboard_dir: Path | None = None
    """Where TensorBoard finds lag, rows and bytes of each update, by its training step."""
    name: str | None = None
    """What the log calls this model, where a process has several."""

    @property
    def told(self) -> dict[str, str]:
        """What every line of the log about this model says."""
        return {"model": self.name} if self.name is not None else {}

    def __post_init__(self) -> None:
        for name in ("export_dir", "checkpoint_dir", "state_dir", "tensorboard_dir"):
            if (given := getattr(self, name)) is not None:
                to_directory(given, name)
        for setting in fields(self):
            if setting.name in _BOUNDS:
                low, high = _BOUNDS[setting.name]
                value = getattr(self, setting.name)
                if not low <= value <= high:
                    raise ConfigurationError(
                        f"{setting.name} is {value}", hint=f"give a number from {low} to {high}"
                    )
