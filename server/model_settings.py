"""What is told of one model that is served: where it is, how it is updated, and how much may be asked of it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError
from hotdelta.given_directory import refuse_nested
from hotdelta.quality_probe import Probe
from hotdelta.remote.stores.address import Address
from hotdelta.sanity_limits import LimitChange
from server.setting_values import about, check, flag_name, require_url

_MODEL_NAME = re.compile(r"[^/:]+")
_OF_A_CHAIN = (
    "pin",
    "state_dir",
    "signing_key_file",
    "orders_key_file",
    "behind_seconds",
    "behind_server",
    "tensorboard_dir",
)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Each model of a server has its own. Raises ConfigurationError out of bounds."""

    export_dir: Path | Address = field(
        metadata=about(
            "holds one directory per export version; the highest is served. Or the address of a store",
            metavar="DIR_OR_URL",
        )
    )
    checkpoint_dir: Path | Address | None = field(
        default=None,
        metadata=about(
            "the directory that the trainer writes to, or the address of a store that it publishes to; without it "
            "exports are served as they are, never updated",
            metavar="DIR_OR_URL",
        ),
    )
    mirror_dir: Path | None = field(
        default=None,
        metadata=about(
            "where what comes from stores is kept on this machine, in a directory for each address that one server "
            "uses at a time; without it in the user's cache directory",
            metavar="DIR",
        ),
    )
    mirror_bytes: int = field(
        default=64 * 2**30,
        metadata=about(
            "disk for what comes from each store, unless what is served needs more",
            bounds=(2**20, 2**50),
        ),
    )
    hint_seconds: float = field(
        default=0.2,
        metadata=about("a store is asked this often whether there is something new", bounds=(0.01, 3600)),
    )
    model_name: str | None = field(
        default=None,
        metadata=about(
            "what clients of TensorFlow Serving call the model (/v1/models/NAME); without it the name that the export "
            "has, which GET /model/version tells",
            metavar="NAME",
        ),
    )
    max_batch_size: int = field(
        default=64,
        metadata=about(
            "rows of waiting requests that may share one call of the model; 1 never batches",
            bounds=(1, 65536),
        ),
    )
    max_rows: int = field(
        default=65536,
        metadata=about("largest first axis of an input of one request", bounds=(1, 2**31)),
    )
    max_queue: int = field(
        default=1024,
        metadata=about("requests that may wait for the model; more are answered with 503", bounds=(1, 10**6)),
    )
    predict_workers: int = field(default=1, metadata=about("threads that call the model", bounds=(1, 64)))
    request_timeout_seconds: float = field(
        default=10.0,
        metadata=about("a prediction that takes longer is answered with 504", bounds=(0.001, 3600)),
    )
    poll_seconds: float = field(
        default=2.0,
        metadata=about(
            "the directories are looked at this often, whatever file-system events say", bounds=(0.01, 3600)
        ),
    )
    polling_only: bool = field(
        default=False, metadata=about("do not rely on file-system events: for network file systems")
    )
    undo_bytes: int = field(
        default=256 * 2**20,
        metadata=about(
            "memory for what recent updates overwrote: a rollback within it is as fast as an update",
            bounds=(0, 2**40),
        ),
    )
    full_diff_bytes: int = field(
        default=256 * 2**20,
        metadata=about(
            "a full that must be gone through and differs in no more than this is copied into the live model while "
            "predictions wait; one that differs in more is loaded into a second model: twice the memory, nobody waits",
            bounds=(0, 2**40),
        ),
    )
    sanity: tuple[LimitChange, ...] = field(
        default=(),
        metadata=about(
            "what an update may look like, for all tables or one variable; what breaks a limit is quarantined. "
            "May be given again; limits and defaults are listed below",
            metavar="[KEY:]NAME=VALUE",
        ),
    )
    probe: Path | None = field(
        default=None,
        metadata=about(
            "labelled requests and limits (JSON lines): an update after which the model does not answer them well "
            "enough is undone before anybody sees it, and quarantined",
            metavar="FILE",
            is_file=True,
        ),
    )
    pin: Position | None = field(
        default=None,
        metadata=about("serve exactly this position until resumed, for example 3.17", metavar="POSITION"),
    )
    state_dir: Path | None = field(
        default=None,
        metadata=about(
            "keeps rollbacks, pins, releases and what is usual for an update over a restart, one directory for each "
            "server. Without it a restarted server follows again, also over what was rolled back",
            metavar="DIR",
        ),
    )
    signing_key_file: Path | None = field(
        default=None,
        metadata=about(
            "use only what the trainer signed with this key, and read it from private copies",
            metavar="FILE",
            is_file=True,
        ),
    )

    orders_key_file: Path | None = field(
        default=None,
        metadata=about(
            "obey the orders that the whole fleet is given through the store (`hotdelta order`), if they are signed "
            "with this key; not the key of commits",
            metavar="FILE",
            is_file=True,
        ),
    )
    behind_seconds: float = field(
        default=0.0,
        metadata=about(
            "take no commit before it is that old; with --behind-server, before that one has served it for so long",
            bounds=(0, 86400),
            metavar="SECONDS",
        ),
    )
    behind_server: str | None = field(
        default=None,
        metadata=about(
            "take only what this other server serves, for example http://canary:8000: nothing that it has quarantined "
            "or rolled back, and nothing new while it does not answer. The variable HOTDELTA_TOKEN has its token",
            metavar="URL",
        ),
    )

    tensorboard_dir: Path | None = field(
        default=None,
        metadata=about(
            "where TensorBoard finds the lag, the rows and the bytes of each update, by its training step",
            metavar="DIR",
        ),
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            check(setting, getattr(self, setting.name))
            is_given = getattr(self, setting.name) != setting.default
            if setting.name in _OF_A_CHAIN and is_given and self.checkpoint_dir is None:
                raise ConfigurationError(
                    f"{flag_name(setting)} without --checkpoint-dir: there is no chain for it",
                    hint="give the directory that the trainer writes to, too",
                )
        if self.orders_key_file is not None and not isinstance(self.checkpoint_dir, Address):
            raise ConfigurationError(
                "--orders-key-file without a store: orders to a fleet are given to the store of its chain",
                hint="give the address of a store with --checkpoint-dir, or use `hotdelta pin` for this server",
            )
        if self.model_name is not None and not _MODEL_NAME.fullmatch(self.model_name):
            raise ConfigurationError(
                f"--model-name is {self.model_name!r}", hint="give one without / and :, as it stands in paths"
            )
        if self.behind_server is not None:
            require_url("--behind-server", self.behind_server)
        if self.probe is not None:
            Probe.read(self.probe)
        if isinstance(self.export_dir, Path) and isinstance(self.checkpoint_dir, Path):
            refuse_nested(self.export_dir, self.checkpoint_dir)
