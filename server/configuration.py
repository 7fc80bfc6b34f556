"""All that a server is told: from flags, HOTDELTA_* variables and, for several models, a file.

What is told of one model (`[models.NAME]`) wins over flags, they win over the environment, that over the file, and that
over defaults. Reading it again reads the file again.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from hotdelta.errors import ConfigurationError
from server.model_settings import ModelSettings
from server.setting_values import (
    ENVIRONMENT_PREFIX,
    LabelPlace,
    ModelPlace,
    about,
    check,
    flag_name,
    of_file,
    parse,
    variable_name,
)
from server.settings import Settings

# Of names without the prefix: a letter in a long one, but neither HOTDELTA_PORT2 nor HOTDELTA_HOSTS.
_LIKENESS = 0.92

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# Verbs of /models/..., so that no path means two things.
_TAKEN_NAMES = ("reload",)
# What every model has its own of.
_OF_ONE_MODEL = ("export_dir", "checkpoint_dir", "model_name", "pin")
# Keys of the file that are no settings.
_BESIDE_SETTINGS = ("models", "labels", "default_model")


@dataclass(frozen=True, slots=True)
class ModelList:
    """Which models there are, as flags say it. Raises ConfigurationError."""

    model: tuple[ModelPlace, ...] = field(
        default=(),
        metadata=about(
            "one of several models, in place of --export-dir and --checkpoint-dir: its name and its directories. "
            "May be given again",
            metavar="NAME=EXPORT_DIR[,RUN_DIR]",
        ),
    )
    config: Path | None = field(
        default=None,
        metadata=about(
            "the models and their settings, as TOML; read again after SIGHUP, which adds and removes models",
            metavar="FILE",
            is_file=True,
        ),
    )
    default_model: str | None = field(
        default=None,
        metadata=about(
            "the model, or the label, that /predict and /model/... mean; without it the only model",
            metavar="NAME",
        ),
    )
    label: tuple[LabelPlace, ...] = field(
        default=(),
        metadata=about(
            "a name for clients that an order moves to another model. May be given again",
            metavar="LABEL=MODEL",
        ),
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            check(setting, getattr(self, setting.name))
        for flag, given in (("--model", self.model), ("--label", self.label)):
            if self.config is not None and given:
                raise ConfigurationError(f"{flag} beside --config", hint=f"write it into {self.config}")


@dataclass(frozen=True, slots=True)
class Configuration:
    """What holds for the server, its models, and which labels are at them. Raises ConfigurationError.

    `general`: what is given for every model that has no value of its own. `is_one_model`: the form without names, whose
    answers are those of a server that knows no others. `file`: where it was read.
    """

    server: Settings
    models: tuple[ModelSettings, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    default_model: str | None = None
    general: Mapping[str, Any] = field(default_factory=dict)
    is_one_model: bool = True
    file: Path | None = None

    def __post_init__(self) -> None:
        names = [model.model_name for model in self.models]
        known = f"models: {', '.join(map(str, names)) or 'none'}"
        if not self.is_one_model:
            for name in names:
                require_name(name, "the name of a model")
            if not names and self.file is None:
                raise ConfigurationError("there is no model", hint="give --model NAME=EXPORT_DIR,RUN_DIR")
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"the model {name!r} is there twice", hint="names are used once")
        _refuse_shared_state(self.models)
        for label, name in self.labels.items():
            require_name(label, "a label")
            if label in names:
                raise ConfigurationError(
                    f"the label {label!r} is the name of a model, too", hint="choose another one"
                )
            if name not in names:
                raise ConfigurationError(
                    f"the label {label!r} is at {name!r}, which is no model here", hint=known
                )
        if self.default_model is not None and self.default_model not in (*names, *self.labels):
            raise ConfigurationError(
                f"the default model is {self.default_model!r}, which is neither a model nor a label here",
                hint=known,
            )


def require_name(name: str | None, what: str) -> None:
    if name is None or not _NAME.fullmatch(name) or name in _TAKEN_NAMES:
        raise ConfigurationError(
            f"{what} is {name!r}", hint="give up to 128 letters, digits, '_', '.' and '-', but not 'reload'"
        )


def model_settings(
    name: str, given: Mapping[str, Any], general: Mapping[str, Any], directory: Path
) -> ModelSettings:
    """One of several models: what is given for it, as TOML or JSON has it, over what holds for all of them.

    Paths are those of `directory`. Raises ConfigurationError.
    """
    known = {setting.name: setting for setting in fields(ModelSettings) if setting.name != "model_name"}
    _refuse_unknown(given, known)
    own = {key: of_file(known[key], value, directory) for key, value in given.items()}
    if "export_dir" not in own:
        raise ConfigurationError("export_dir is missing", hint="say which directory holds its exports")
    return _one_of_several(name, own, general)


def read_configuration(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Configuration:
    """Raises ConfigurationError."""
    _refuse_misspelt(flags, environment)
    chosen = ModelList(**_given(ModelList, flags, environment))
    document = _read_file(chosen.config) if chosen.config is not None else {}
    try:
        shared = _shared(document, chosen.config.parent if chosen.config is not None else Path())
    except ConfigurationError as error:
        raise _in_file(chosen.config, "", error) from error
    server = _server_settings(_only(Settings, shared) | _given(Settings, flags, environment))
    general = _only(ModelSettings, shared) | _given(ModelSettings, flags, environment)
    if chosen.config is None and not chosen.model:
        return _of_one_model(server, general, chosen)
    _refuse_shared_places(general, "--config" if chosen.config is not None else "--model")
    if chosen.config is None:
        models = tuple(_at(place, general) for place in chosen.model)
        labels, default_model = _labels(chosen), chosen.default_model
    else:
        models = _models_of(document, general, chosen.config)
        labels = _labels_of(document, chosen.config)
        default_model = chosen.default_model or document.get("default_model")
    return Configuration(
        server, models, labels, default_model, general, is_one_model=False, file=chosen.config
    )


def _of_one_model(server: Settings, given: Mapping[str, Any], chosen: ModelList) -> Configuration:
    missing = next(setting for setting in fields(ModelSettings) if setting.default is MISSING)
    if missing.name not in given:
        raise ConfigurationError(
            f"{flag_name(missing)} is missing", hint=f"give the flag, or set {variable_name(missing)}"
        )
    return Configuration(server, (ModelSettings(**given),), _labels(chosen), chosen.default_model, given)


def _at(place: ModelPlace, general: Mapping[str, Any]) -> ModelSettings:
    own = {"export_dir": place.export_dir, "checkpoint_dir": place.checkpoint_dir}
    try:
        return _one_of_several(place.name, own, general)
    except ConfigurationError as error:
        raise ConfigurationError(f"--model {place.name}: {error.message}", hint=error.hint) from error


def _one_of_several(name: str, own: Mapping[str, Any], general: Mapping[str, Any]) -> ModelSettings:
    """Of the state directory that is given for all each model with a chain has a part."""
    require_name(name, "the name of a model")
    values = dict(general)
    for directory in ("state_dir", "tensorboard_dir"):
        parent = values.pop(directory, None)
        if parent is not None and own.get("checkpoint_dir") is not None:
            values[directory] = parent / name
    return ModelSettings(**{"model_name": name, **values, **own})


def _labels(chosen: ModelList) -> dict[str, str]:
    labels: dict[str, str] = {}
    for place in chosen.label:
        if place.label in labels:
            raise ConfigurationError(f"--label {place.label} is there twice", hint="a label is at one model")
        labels[place.label] = place.model
    return labels


def _read_file(path: Path) -> dict[str, Any]:
    try:
        content = path.read_bytes()
        return tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}", hint="it is TOML, in UTF-8") from error


def _shared(document: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The keys beside the tables: of the server, and of all models."""
    known = {
        setting.name: setting
        for setting in (*fields(Settings), *fields(ModelSettings))
        if setting.name not in _OF_ONE_MODEL
    }
    _refuse_unknown(document, {*known, *_BESIDE_SETTINGS})
    default_model = document.get("default_model")
    if default_model is not None and not isinstance(default_model, str):
        raise ConfigurationError(f"default_model is {default_model!r}", hint="write the name of a model")
    return {key: of_file(known[key], value, directory) for key, value in document.items() if key in known}


def _models_of(
    document: Mapping[str, Any], general: Mapping[str, Any], file: Path
) -> tuple[ModelSettings, ...]:
    models = []
    for name, given in _table(document, "models", file).items():
        try:
            if not isinstance(given, dict):
                raise ConfigurationError("it is no table", hint=f"write [models.{name}]")
            models.append(model_settings(name, given, general, file.parent))
        except ConfigurationError as error:
            raise _in_file(file, f"[models.{name}]: ", error) from error
    return tuple(models)


def _labels_of(document: Mapping[str, Any], file: Path) -> dict[str, str]:
    labels = _table(document, "labels", file)
    for label, model in labels.items():
        if not isinstance(model, str):
            problem = ConfigurationError(f"{label} is {model!r}", hint="write the name of a model")
            raise _in_file(file, "[labels]: ", problem)
    return labels


def _table(document: Mapping[str, Any], name: str, file: Path) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise _in_file(file, "", ConfigurationError(f"{name} is no table", hint=f"write [{name}]"))
    return table


def _in_file(file: Path | None, where: str, error: ConfigurationError) -> ConfigurationError:
    return ConfigurationError(f"{file}: {where}{error.message}", hint=error.hint)


def _refuse_unknown(given: Iterable[str], known: Collection[str]) -> None:
    for key in given:
        if key not in known:
            similar = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {similar[0]}?" if similar else f"known: {', '.join(sorted(known))}"
            raise ConfigurationError(f"{key} is no setting", hint=hint)


def _refuse_shared_places(general: Mapping[str, Any], form: str) -> None:
    for name in _OF_ONE_MODEL:
        if name in general:
            raise ConfigurationError(
                f"--{name.replace('_', '-')} beside {form}", hint="each of several models has its own"
            )


def _refuse_shared_state(models: Iterable[ModelSettings]) -> None:
    """Of two models that write into one directory, each would forget what the other was ordered."""
    owners: dict[Path, str | None] = {}
    for model in models:
        if model.state_dir is not None:
            other = owners.setdefault(model.state_dir.resolve(), model.model_name)
            if other != model.model_name:
                raise ConfigurationError(
                    f"{other!r} and {model.model_name!r} have the same state directory {model.state_dir}",
                    hint="give each model one of its own",
                )


def _given(
    kind: type[ModelList | Settings | ModelSettings],
    flags: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Any]:
    """What flags and variables say of these settings; flags win."""
    values: dict[str, Any] = {}
    for setting in fields(kind):
        if (given := flags.get(setting.name)) is not None:
            values[setting.name] = tuple(given) if isinstance(given, list) else given
        elif text := environment.get(variable_name(setting)):
            values[setting.name] = _of_variable(setting, text)
    return values


def _only(kind: type[Settings | ModelSettings], values: Mapping[str, Any]) -> dict[str, Any]:
    return {setting.name: values[setting.name] for setting in fields(kind) if setting.name in values}


def _server_settings(values: Mapping[str, Any]) -> Settings:
    """By default there is room for one body."""
    if "max_buffered_bytes" in values or "max_body_bytes" not in values:
        return Settings(**values)
    default = next(setting.default for setting in fields(Settings) if setting.name == "max_buffered_bytes")
    return Settings(**values, max_buffered_bytes=max(default, values["max_body_bytes"]))


def _of_variable(setting: Field[Any], text: str) -> Any:
    """Names the variable when it is wrong: Kubernetes sets HOTDELTA_PORT by itself for a service `hotdelta`."""
    try:
        value = parse(setting, text)
        check(setting, value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{variable_name(setting)}: {error.message}", hint=error.hint) from error
    return value


def all_settings() -> tuple[Field[Any], ...]:
    """Every setting that is a flag and a variable, as the help lists them."""
    return (*fields(ModelSettings), *fields(ModelList), *fields(Settings))


def _refuse_misspelt(flags: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """A variable that looks like a setting which nobody gave, and is none, would be ignored without a word."""
    known = {variable_name(setting).removeprefix(ENVIRONMENT_PREFIX): setting for setting in all_settings()}
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
