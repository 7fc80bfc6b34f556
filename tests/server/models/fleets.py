"""Servers with several fake models: who is who shows in the answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from starlette.testclient import TestClient

from hotdelta.errors import ConfigurationError
from loader.model.served import Version
from server.app import create_app
from server.configuration import Configuration, read_configuration
from server.model_settings import ModelSettings
from server.served_model import Array
from tests.server.fake_model import FakeModel

TOKEN = "0123456789abcdef0123"  # noqa: S105 - opens nothing
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
ROW = {"instances": [[1, 2]]}


@dataclass
class Answering(FakeModel):
    """Answers with its own number, whatever it is asked."""

    number: float = 0.0

    def _outputs(self, signature: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        (rows,) = {len(array) for array in feeds.values()}
        return {"score": np.full(rows, self.number, np.float32)}

    def predict(self, signature: str, feeds: Mapping[str, Array]) -> tuple[Mapping[str, Array], Version]:
        if signature == "serving_default":
            self.is_asked.set()
            assert self.may_answer.wait(60)
            assert self.position is not None
            return self._outputs(signature, feeds), Version(self.position, 1, 1)
        return super().predict(signature, feeds)


@dataclass
class Yard:
    """Where models are made: by name, those that are to come too. `made` is in the order of their making."""

    models: dict[str, FakeModel]
    made: list[str] = field(default_factory=list)

    def make(self, settings: ModelSettings) -> FakeModel:
        name = str(settings.model_name)
        if name not in self.models:
            raise ConfigurationError(f"nobody can make {name!r}")
        self.made.append(name)
        return self.models[name]


@contextmanager
def serving_all(yard: Yard, configuration: Configuration, **more: Any) -> Iterator[TestClient]:
    app = create_app(configuration, yard.make, **more)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def several(directory: Path, *names: str, **flags: Any) -> Configuration:
    """As --model says it, with a token for orders."""
    return read_configuration({**_flags(directory, names), **flags}, {})


def _flags(directory: Path, names: tuple[str, ...]) -> dict[str, Any]:
    from server.configuration import all_settings
    from server.setting_values import parse

    model = next(setting for setting in all_settings() if setting.name == "model")
    text = ";".join(f"{name}={directory / name / 'export'},{directory / name / 'run'}" for name in names)
    return {"model": parse(model, text), "admin_token_file": token_file(directory)}


def token_file(directory: Path) -> Path:
    path = directory / "tokens"
    path.write_text(f"alice:{TOKEN}\n")
    return path


def answered(client: TestClient, path: str) -> float:
    response = client.post(path, json=ROW)
    assert response.status_code == 200, response.text
    (score,) = response.json()["predictions"]
    return float(score)


def order(client: TestClient, path: str, document: Mapping[str, Any] | None = None) -> Any:
    """What came of it: the answer, or the error."""
    response = client.post(path, json=document or {}, headers=OPERATOR)
    body = response.json()
    return body if response.status_code == 200 else (response.status_code, body["error"])
