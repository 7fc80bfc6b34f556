"""The application around fake models, with settings of the server and of its models given together."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from server.app import create_app
from server.configuration import Configuration
from server.model_settings import ModelSettings
from server.served_model import ServedModel
from server.settings import Settings

EXPORT_DIR, CHECKPOINT_DIR = Path("export"), Path("run")


def configuration_of(
    export_dir: Path = EXPORT_DIR, checkpoint_dir: Path | None = CHECKPOINT_DIR, /, **options: Any
) -> Configuration:
    """Of one model that has no name, with these settings, whichever they belong to."""
    of_server = {setting.name for setting in fields(Settings)}
    server = {name: value for name, value in options.items() if name in of_server}
    model = {name: value for name, value in options.items() if name not in of_server}
    return Configuration(Settings(**server), (ModelSettings(export_dir, checkpoint_dir, **model),))


def application(model: ServedModel, /, **options: Any) -> FastAPI:
    return create_app(configuration_of(**options), lambda _: model)
