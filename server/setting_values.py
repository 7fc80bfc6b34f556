"""One setting: what its flag and its variable are called, how its text is read, and what it may be."""

from __future__ import annotations

from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hotdelta.chain import Position
from hotdelta.errors import ConfigurationError, ManifestError
from hotdelta.given_directory import to_directory
from hotdelta.remote.stores.address import Address, is_address
from hotdelta.sanity_limits import LimitChange

ENVIRONMENT_PREFIX = "HOTDELTA_"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """One of several models: what clients call it, and where it is."""

    name: str
    export_dir: Path | Address
    checkpoint_dir: Path | Address | None


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """A name for clients, and the model that it is at."""

    label: str
    model: str


def about(help_text: str, *, bounds: tuple[float, float] | None = None, **more: Any) -> dict[str, Any]:
    return {"help": help_text, "bounds": bounds, **more}


def flag_name(setting: Field[Any]) -> str:
    return f"--{setting.name.replace('_', '-')}"


def variable_name(setting: Field[Any]) -> str:
    return f"{ENVIRONMENT_PREFIX}{setting.name.upper()}"


def parse(setting: Field[Any], text: str) -> Any:
    """The value that a flag or an environment variable spells out. Raises ConfigurationError."""
    match setting.type:
        case "Path | Address" | "Path | Address | None" if is_address(text):
            return _address(setting, text)
        case "Path" | "Path | None" | "Path | Address" | "Path | Address | None":
            return _path(setting, text)
        case "Position | None":
            return _position(setting, text)
        case "tuple[LimitChange, ...]":
            return _limits(setting, text)
        case "tuple[ModelPlace, ...]":
            return tuple(_place(setting, part) for part in _listed(text))
        case "tuple[LabelPlace, ...]":
            return tuple(_label(setting, part) for part in _listed(text))
        case "tuple[str, ...]":
            return tuple(_listed(text))
        case "int" | "int | None" | "float":
            return _number(setting, text, float if setting.type == "float" else int)
        case "bool":
            return _boolean(setting, text)
        case _:
            return text


def _path(setting: Field[Any], text: str) -> Path:
    """Path("") would be this directory: what a shell makes of a variable that is not set."""
    if not text:
        raise ConfigurationError(f"{flag_name(setting)} is empty", hint="write . for this directory")
    return Path(text) if setting.metadata.get("is_file") else to_directory(text, flag_name(setting))


def _address(setting: Field[Any], text: str) -> Address:
    try:
        return Address.parse(text)
    except ConfigurationError as error:
        raise ConfigurationError(f"{flag_name(setting)}: {error.message}", hint=error.hint) from error


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


def _listed(text: str) -> list[str]:
    """A variable has several with semicolons, where a flag is given again."""
    return [part.strip() for part in text.split(";") if part.strip()]


def require_url(flag: str, url: str) -> None:
    """Of a server. It is logged and shown, so it holds no password; and who asks it would not get past one that is no
    URL. Raises ConfigurationError.
    """
    if "@" in url:
        raise ConfigurationError(
            f"{flag} has a name or password in it",
            hint="leave out what stands before the @; the variable HOTDELTA_TOKEN has the token of that server",
        )
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise ConfigurationError(
            f"{flag} is {url!r}", hint="write http://HOST:PORT, as that server prints it"
        )


def _place(setting: Field[Any], text: str) -> ModelPlace:
    name, equals, places = text.partition("=")
    directories = [part.strip() for part in places.split(",")]
    if not equals or len(directories) > 2 or not all(directories):
        raise ConfigurationError(
            f"{flag_name(setting)} is {text!r}", hint="write NAME=EXPORT_DIR,RUN_DIR, or NAME=EXPORT_DIR"
        )
    export_dir, *rest = (
        _address(setting, place) if is_address(place) else to_directory(place, flag_name(setting))
        for place in directories
    )
    return ModelPlace(name.strip(), export_dir, rest[0] if rest else None)


def _label(setting: Field[Any], text: str) -> LabelPlace:
    label, equals, model = text.partition("=")
    if not equals or not model.strip():
        raise ConfigurationError(f"{flag_name(setting)} is {text!r}", hint="write LABEL=MODEL")
    return LabelPlace(label.strip(), model.strip())


def _boolean(setting: Field[Any], text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ConfigurationError(f"{flag_name(setting)} is {text!r}", hint="write true or false")
    return text.lower() in _TRUE


def check(setting: Field[Any], value: Any) -> None:
    bounds, choices = setting.metadata.get("bounds"), setting.metadata.get("choices")
    if bounds is not None and value is not None and not bounds[0] <= value <= bounds[1]:
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


def of_file(setting: Field[Any], value: Any, directory: Path) -> Any:
    """A value as TOML writes it; paths are those of the file's `directory`. Raises ConfigurationError."""
    match setting.type, value:
        case "bool", bool():
            return value
        case ("int" | "int | None", int()) | ("float", int() | float()) if not isinstance(value, bool):
            return value
        case "tuple[LimitChange, ...]", [*limits] if all(isinstance(limit, str) for limit in limits):
            return tuple(change for limit in limits for change in parse(setting, limit))
        case "tuple[str, ...]", [*texts] if all(isinstance(text, str) for text in texts):
            return tuple(value for text in texts for value in parse(setting, text))
        case "Path | Address" | "Path | Address | None", str() if is_address(value):
            return parse(setting, value)
        case "Path" | "Path | None" | "Path | Address" | "Path | Address | None", str():
            path: Path = parse(setting, value)
            return directory / path
        case "Position | None" | "str" | "str | None", str():
            return parse(setting, value)
        case _:
            pass
    raise ConfigurationError(f"{flag_name(setting)} is {value!r}", hint=f"write {_SAYS[_kind(setting)]}")


def _kind(setting: Field[Any]) -> str:
    return str(setting.type).removesuffix(" | None").removesuffix(" | Address")


_SAYS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "tuple[LimitChange, ...]": 'a list of texts: ["max_abs=50", "users:max_abs=10"]',
    "tuple[str, ...]": 'a list of texts: ["http://HOST:PORT"]',
    "Path": "a text",
    "Position": 'a text: "3.17"',
    "str": "a text",
}
