"""What a server is told, once, at its start: one value from flags and HOTDELTA_* environment variables."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.given_directory import refuse_nested, to_directory
from hotdelta.sanity_limits import LimitChange

ENVIRONMENT_PREFIX = "HOTDELTA_"

# Of names without the prefix: a letter in a long one, but neither HOTDELTA_PORT2 nor HOTDELTA_HOSTS.
_LIKENESS = 0.92

_MODEL_NAME = re.compile(r"[^/:]+")
_OF_A_CHAIN = ("pin", "state_dir", "signing_key_file")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def _about(help_text: str, *, bounds: tuple[float, float] | None = None, **more: Any) -> dict[str, Any]:
    return {"help": help_text, "bounds": bounds, **more}


@dataclass(frozen=True, slots=True)
class Settings:
    """Where to look, where to listen, and how much a client may ask for. Raises ConfigurationError out of bounds."""

    export_dir: Path = field(
        metadata=_about("holds one directory per export version; the highest is served", metavar="DIR")
    )
    checkpoint_dir: Path | None = field(
        default=None,
        metadata=_about(
            "the directory that the trainer writes to; without it exports are served as they are, never updated",
            metavar="DIR",
        ),
    )
    model_name: str | None = field(
        default=None,
        metadata=_about(
            "what clients of TensorFlow Serving call the model (/v1/models/NAME); without it the name that the export "
            "has, which GET /model/version tells",
            metavar="NAME",
        ),
    )
    host: str = field(
        default="127.0.0.1",
        metadata=_about(
            "address to listen on; without --predict-token-file everybody may predict, so loopback by default"
        ),
    )
    port: int = field(
        default=8000, metadata=_about("TCP port; 0 takes a free one, which is printed", bounds=(0, 65535))
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=_about(
            "speak TLS with this certificate (PEM, its own first, then those that lead to its CA); needs --tls-key. "
            "Read again when it is replaced",
            metavar="FILE",
            is_file=True,
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=_about("the key of --tls-cert (PEM, not encrypted)", metavar="FILE", is_file=True),
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=_about(
            "let in only clients with a certificate that this CA has signed (PEM); needs --tls-cert",
            metavar="FILE",
            is_file=True,
        ),
    )
    predict_token_file: Path | None = field(
        default=None,
        metadata=_about(
            "tokens, one a line; who sends none of them (Authorization: Bearer TOKEN) learns only whether the server "
            "lives. Without it nobody needs one. Read again when it is replaced",
            metavar="FILE",
            is_file=True,
        ),
    )
    log_format: str = field(
        default="text", metadata=_about("log lines for people or for machines", choices=("text", "json"))
    )
    max_body_bytes: int = field(
        default=16 * 2**20, metadata=_about("largest request body", bounds=(1024, 2**31))
    )
    max_buffered_bytes: int = field(
        default=256 * 2**20,
        metadata=_about(
            "request bodies, and answers that are not taken yet, of all connections together; what comes on top is "
            "answered with 503. At least --max-body-bytes, which is the default when it is larger",
            bounds=(2**20, 2**40),
        ),
    )
    max_connections: int = field(
        default=1000,
        metadata=_about(
            "connections; for one more the one that has been idle longest is closed, and when none is idle it is "
            "answered with 503",
            bounds=(1, 10**6),
        ),
    )
    client_timeout_seconds: float = field(
        default=30.0,
        metadata=_about(
            "a request whose headers are not complete by then, or of whose body no byte comes for as long, is answered "
            "with 408; a connection of whose answer no byte is taken for as long is closed. Bodies and answers that "
            "take longer give way when --max-connections or --max-buffered-bytes is reached",
            bounds=(0.001, 3600),
        ),
    )
    max_batch_size: int = field(
        default=64,
        metadata=_about(
            "rows of waiting requests that may share one call of the model; 1 never batches",
            bounds=(1, 65536),
        ),
    )
    max_rows: int = field(
        default=65536,
        metadata=_about("largest first axis of an input of one request", bounds=(1, 2**31)),
    )
    max_queue: int = field(
        default=1024,
        metadata=_about(
            "requests that may wait for the model; more are answered with 503", bounds=(1, 10**6)
        ),
    )
    predict_workers: int = field(default=1, metadata=_about("threads that call the model", bounds=(1, 64)))
    request_timeout_seconds: float = field(
        default=10.0,
        metadata=_about("a prediction that takes longer is answered with 504", bounds=(0.001, 3600)),
    )
    max_wait_ms: int = field(
        default=10_000,
        metadata=_about("longest wait_ms that a request with min_position may ask for", bounds=(0, 600_000)),
    )
    stop_seconds: float = field(
        default=10.0,
        metadata=_about("after SIGTERM requests in flight have this long to finish", bounds=(1, 3600)),
    )
    poll_seconds: float = field(
        default=2.0,
        metadata=_about(
            "the directories are looked at this often, whatever file-system events say", bounds=(0.01, 3600)
        ),
    )
    polling_only: bool = field(
        default=False, metadata=_about("do not rely on file-system events: for network file systems")
    )
    undo_bytes: int = field(
        default=256 * 2**20,
        metadata=_about(
            "memory for what recent updates overwrote: a rollback within it is as fast as an update",
            bounds=(0, 2**40),
        ),
    )
    full_diff_bytes: int = field(
        default=256 * 2**20,
        metadata=_about(
            "a full that must be gone through and differs in no more than this is copied into the live model while "
            "predictions wait; one that differs in more is loaded into a second model: twice the memory, nobody waits",
            bounds=(0, 2**40),
        ),
    )
    sanity: tuple[LimitChange, ...] = field(
        default=(),
        metadata=_about(
            "what an update may look like, for all tables or one variable; what breaks a limit is quarantined. "
            "May be given again; limits and defaults are listed below",
            metavar="[KEY:]NAME=VALUE",
        ),
    )
    pin: Position | None = field(
        default=None,
        metadata=_about("serve exactly this position until resumed, for example 3.17", metavar="POSITION"),
    )
    state_dir: Path | None = field(
        default=None,
        metadata=_about(
            "keeps rollbacks, pins, releases and what is usual for an update over a restart, one directory for each "
            "server. Without it a restarted server follows again, also over what was rolled back",
            metavar="DIR",
        ),
    )
    admin_token_file: Path | None = field(
        default=None,
        metadata=_about(
            "lines of name:token; who sends one may roll back, pin and resume. Without it nobody may",
            metavar="FILE",
            is_file=True,
        ),
    )
    signing_key_file: Path | None = field(
        default=None,
        metadata=_about(
            "use only what the trainer signed with this key, and read it from private copies",
            metavar="FILE",
            is_file=True,
        ),
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            _check(setting, getattr(self, setting.name))
            is_given = getattr(self, setting.name) != setting.default
            if setting.name in _OF_A_CHAIN and is_given and self.checkpoint_dir is None:
                raise ConfigurationError(
                    f"{flag_name(setting)} without --checkpoint-dir: there is no chain for it",
                    hint="give the directory that the trainer writes to, too",
                )
        _require_together(self)
        if self.model_name is not None and not _MODEL_NAME.fullmatch(self.model_name):
            raise ConfigurationError(
                f"--model-name is {self.model_name!r}", hint="give one without / and :, as it stands in paths"
            )
        if self.checkpoint_dir is not None:
            refuse_nested(self.export_dir, self.checkpoint_dir)
        if self.max_buffered_bytes < self.max_body_bytes:
            raise ConfigurationError(
                f"--max-buffered-bytes is {self.max_buffered_bytes}, less than one body may have",
                hint=f"give at least --max-body-bytes, which is {self.max_body_bytes}",
            )


def _require_together(settings: Settings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        given, missing = ("cert", "key") if settings.tls_key is None else ("key", "cert")
        raise ConfigurationError(f"--tls-{given} without --tls-{missing}", hint="give both, or neither")
    if settings.tls_client_ca is not None and settings.tls_cert is None:
        raise ConfigurationError(
            "--tls-client-ca without --tls-cert: without TLS no client shows a certificate",
            hint="give --tls-cert and --tls-key, too",
        )


def read_settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Flags win over the environment, the environment over defaults. Raises ConfigurationError."""
    _refuse_misspelt(flags, environment)
    values: dict[str, Any] = {}
    for setting in fields(Settings):
        if (given := flags.get(setting.name)) is not None:
            values[setting.name] = tuple(given) if isinstance(given, list) else given
        elif text := environment.get(variable_name(setting)):
            values[setting.name] = _of_variable(setting, text)
        elif setting.default is MISSING:
            raise ConfigurationError(
                f"{flag_name(setting)} is missing", hint=f"give the flag, or set {variable_name(setting)}"
            )
        elif setting.name == "max_buffered_bytes":
            values[setting.name] = max(setting.default, values.get("max_body_bytes", 0))
    return Settings(**values)


def _of_variable(setting: Field[Any], text: str) -> Any:
    """Names the variable when it is wrong: Kubernetes sets HOTDELTA_PORT by itself for a service `hotdelta`."""
    try:
        value = parse(setting, text)
        _check(setting, value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{variable_name(setting)}: {error.message}", hint=error.hint) from error
    return value


def _refuse_misspelt(flags: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """A variable that looks like a setting which nobody gave, and is none, would be ignored without a word."""
    known = {variable_name(setting).removeprefix(ENVIRONMENT_PREFIX): setting for setting in fields(Settings)}
    for variable in environment:
        name = variable.removeprefix(ENVIRONMENT_PREFIX)
        if name == variable or name in known:
            continue
        for similar in difflib.get_close_matches(name, known, n=1, cutoff=_LIKENESS):
            meant = known[similar]
            if flags.get(meant.name) is None and not environment.get(variable_name(meant)):
                raise ConfigurationError(
                    f"{variable} is no setting", hint=f"did you mean {variable_name(meant)}?"
                )


def flag_name(setting: Field[Any]) -> str:
    return f"--{setting.name.replace('_', '-')}"


def variable_name(setting: Field[Any]) -> str:
    return f"{ENVIRONMENT_PREFIX}{setting.name.upper()}"


def parse(setting: Field[Any], text: str) -> Any:
    """The value that a flag or an environment variable spells out. Raises ConfigurationError."""
    match setting.type:
        case "Path" | "Path | None":
            return _path(setting, text)
        case "Position | None":
            return _position(setting, text)
        case "tuple[LimitChange, ...]":
            return _limits(setting, text)
        case "int":
            return _number(setting, text, int)
        case "float":
            return _number(setting, text, float)
        case "bool":
            return _boolean(setting, text)
        case _:
            return text


def _path(setting: Field[Any], text: str) -> Path:
    """Path("") would be this directory: what a shell makes of a variable that is not set."""
    if not text:
        raise ConfigurationError(f"{flag_name(setting)} is empty", hint="write . for this directory")
    return Path(text) if setting.metadata.get("is_file") else to_directory(text, flag_name(setting))


def _number(setting: Field[Any], text: str, kind: type[int | float]) -> float:
    try:
        return kind(text)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise ConfigurationError(f"{flag_name(setting)} is {text!r}, which is not {wanted}") from error


def _position(setting: Field[Any], text: str) -> Position:
    try:
        return Position.parse(text)
    except ManifestError as error:
        raise ConfigurationError(f"{flag_name(setting)}: {error.message}", hint=error.hint) from error


def _limits(setting: Field[Any], text: str) -> tuple[LimitChange, ...]:
    try:
        return tuple(LimitChange.parse(part) for part in text.split(",") if part.strip())
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag_name(setting)}: {error.message}", hint=error.hint) from error


def _boolean(setting: Field[Any], text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigurationError(f"{flag_name(setting)} is {text!r}", hint="write true or false")
    return text.lower() in _TRUE


def _check(setting: Field[Any], value: Any) -> None:
    bounds, choices = setting.metadata.get("bounds"), setting.metadata.get("choices")
    if bounds is not None and not bounds[0] <= value <= bounds[1]:
        raise ConfigurationError(
            f"{flag_name(setting)} is {value}", hint=f"give a number from {bounds[0]} to {bounds[1]}"
        )
    if choices is not None and value not in choices:
        raise ConfigurationError(f"{flag_name(setting)} is {value!r}", hint=f"write {' or '.join(choices)}")
    if setting.metadata.get("is_file"):
        if value is not None and not value.is_file():
            raise ConfigurationError(f"{flag_name(setting)} is {value}, which is not a file")
    elif isinstance(value, Path) and to_directory(value, flag_name(setting)).exists() and not value.is_dir():
        raise ConfigurationError(f"{flag_name(setting)} is {value}, which is not a directory")
