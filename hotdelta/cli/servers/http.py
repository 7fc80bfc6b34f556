"""A running server over HTTP: a question or an order, and JSON for an answer. Every way that it can fail is said here.

httpx is imported when a server is asked: commands that look at files start in a third of the time without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from hotdelta.cli.servers.access import READING_TOKEN_VARIABLE, Access
from hotdelta.errors import ConfigurationError, RequestError

_HOW_TO_WRITE = "write http://HOST:PORT, as the server prints it"

_MAY_SPEAK_TLS = "if it was started with --tls-cert, write https://HOST:PORT"
_MAY_WANT_A_CERTIFICATE = "if it was started with --tls-client-ca, give --client-cert and --client-key"
_MAY_SPEAK_NO_TLS = "if it was started without --tls-cert, write http://HOST:PORT"

_DATA = "data: "

Document = Mapping[str, Any]


def path_of(model: str | None, verb: str) -> str:
    """Where to ask for a model, by its name or a label, or for the default one."""
    return f"/model/{verb}" if model is None else f"/models/{quote(model, safe='')}/{verb}"


class Answer(NamedTuple):
    status: int
    document: Document


def is_url(text: str) -> bool:
    return text.startswith(("http://", "https://"))


class ServerHttp:
    """One server, asked again and again over the same connection. Redirects are not followed."""

    def __init__(self, url: str, *, timeout_seconds: float, access: Access | None = None) -> None:
        """Raises ConfigurationError for what is no address."""
        import httpx

        if not is_url(url):
            raise ConfigurationError(f"{url!r} is no address", hint=_HOW_TO_WRITE)
        self.url = url.rstrip("/")
        self._httpx = httpx
        access = access or Access()
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._client = httpx.Client(
            timeout=timeout_seconds, headers=headers, verify=access.tls if access.tls is not None else True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def get(self, path: str) -> Answer:
        """Raises RequestError when nobody answers, ConfigurationError when it is no server of hotdelta."""
        return self._ask("GET", path, "is the server overloaded, or the network down?")

    def first_event(self, path: str) -> Document:
        """The first of a stream of events, which is not listened to any longer. Raises as `get` does."""
        httpx = self._httpx
        try:
            with self._client.stream("GET", f"{self.url}{path}") as answer:
                if answer.status_code != HTTPStatus.OK:
                    raise RequestError(f"{self.url} tells of no events ({answer.status_code})")
                lines = (line for line in answer.iter_lines() if line.startswith(_DATA))
                document = json.loads(next(lines, _DATA).removeprefix(_DATA))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise self.foreign() from error
        if not isinstance(document, dict):
            raise self.foreign()
        return document

    def post(self, path: str, document: Document, *, if_silent: str) -> Answer:
        """The same. `if_silent`: what to do when no answer comes, although the order may have been carried out."""
        return self._ask("POST", path, if_silent, json=document)

    def _ask(self, method: str, path: str, if_silent: str, **options: Any) -> Answer:
        httpx = self._httpx
        try:
            answer = self._client.request(method, f"{self.url}{path}", **options)
            document = answer.json()
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigurationError(f"{self.url!r} is no address", hint=_HOW_TO_WRITE) from error
        except httpx.TimeoutException as error:
            raise RequestError(f"{self.url} does not answer", hint=if_silent) from error
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValueError as error:
            raise self.foreign() from error
        if not isinstance(document, dict):
            raise self.foreign()
        return Answer(answer.status_code, document)

    def _unreachable(self, error: Exception) -> RequestError:
        """With TLS on one side alone, or without the certificate that a server demands, it only hangs up."""
        httpx, hint = self._httpx, "is a server running there?"
        if "certificate verify failed" in str(error):
            hint = "give its CA with --ca-file"
        elif not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            hint = _MAY_SPEAK_TLS if self.url.startswith("http://") else _MAY_WANT_A_CERTIFICATE
        elif "[SSL" in str(error):
            hint = _MAY_SPEAK_NO_TLS
        return RequestError(f"{self.url} cannot be asked: {str(error).rstrip('.')}", hint=hint)

    def foreign(self) -> ConfigurationError:
        return ConfigurationError(
            f"what answers at {self.url} is no server of hotdelta",
            hint="write http://HOST:PORT, without a path",
        )


def require_ok(answer: Answer, url: str) -> Document:
    """What was answered. Raises RequestError with the server's own reason when it is a refusal."""
    if answer.status == HTTPStatus.UNAUTHORIZED:
        raise RequestError(
            f"{url} does not answer without a token that it knows",
            hint=f"give one of the server's --predict-token-file with --token-file or {READING_TOKEN_VARIABLE}",
        )
    if answer.status != HTTPStatus.OK:
        raise RequestError(f"{url} refuses: {answer.document.get('error')}")
    return answer.document
