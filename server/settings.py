"""What a server is told for all its models together: where it listens, and how much clients may ask for."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path

from hotdelta.errors import ConfigurationError
from server.setting_values import about, check, require_url


@dataclass(frozen=True, slots=True)
class Settings:
    """One of a server; its models have their own. Raises ConfigurationError out of bounds."""

    host: str = field(
        default="127.0.0.1",
        metadata=about(
            "address to listen on; without --predict-token-file everybody may predict, so loopback by default"
        ),
    )
    port: int = field(
        default=8000, metadata=about("TCP port; 0 takes a free one, which is printed", bounds=(0, 65535))
    )
    grpc_port: int | None = field(
        default=None,
        metadata=about(
            "TCP port for gRPC (TensorFlow Serving, Open Inference Protocol, health, reflection) on the same address; "
            "0 takes a free one, which is printed. Without it there is none",
            bounds=(0, 65535),
        ),
    )
    front_ends: int = field(
        default=0,
        metadata=about(
            "processes that speak HTTP and JSON for the one that has the models: for a host with many cores. 0: that "
            "one does it itself",
            bounds=(0, 256),
        ),
    )
    tls_cert: Path | None = field(
        default=None,
        metadata=about(
            "speak TLS with this certificate (PEM, its own first, then those that lead to its CA); needs --tls-key. "
            "Read again when it is replaced",
            metavar="FILE",
            is_file=True,
        ),
    )
    tls_key: Path | None = field(
        default=None,
        metadata=about("the key of --tls-cert (PEM, not encrypted)", metavar="FILE", is_file=True),
    )
    tls_client_ca: Path | None = field(
        default=None,
        metadata=about(
            "let in only clients with a certificate that this CA has signed (PEM); needs --tls-cert",
            metavar="FILE",
            is_file=True,
        ),
    )
    predict_token_file: Path | None = field(
        default=None,
        metadata=about(
            "tokens, one a line; who sends none of them (Authorization: Bearer TOKEN) learns only whether the server "
            "lives. Without it nobody needs one. Read again when it is replaced",
            metavar="FILE",
            is_file=True,
        ),
    )
    log_format: str = field(
        default="text", metadata=about("log lines for people or for machines", choices=("text", "json"))
    )
    max_body_bytes: int = field(
        default=16 * 2**20, metadata=about("largest request body", bounds=(1024, 2**31))
    )
    max_buffered_bytes: int = field(
        default=256 * 2**20,
        metadata=about(
            "request bodies, and answers that are not taken yet, of all connections together; what comes on top is "
            "answered with 503. At least --max-body-bytes, which is the default when it is larger",
            bounds=(2**20, 2**40),
        ),
    )
    max_connections: int = field(
        default=1000,
        metadata=about(
            "connections; for one more the one that has been idle longest is closed, and when none is idle it is "
            "answered with 503",
            bounds=(1, 10**6),
        ),
    )
    client_timeout_seconds: float = field(
        default=30.0,
        metadata=about(
            "a request whose headers are not complete by then, or of whose body no byte comes for as long, is answered "
            "with 408; a connection of whose answer no byte is taken for as long is closed. Bodies and answers that "
            "take longer give way when --max-connections or --max-buffered-bytes is reached",
            bounds=(0.001, 3600),
        ),
    )
    max_wait_ms: int = field(
        default=10_000,
        metadata=about("longest wait_ms that a request with min_position may ask for", bounds=(0, 600_000)),
    )
    stop_seconds: float = field(
        default=10.0,
        metadata=about("after SIGTERM requests in flight have this long to finish", bounds=(1, 3600)),
    )
    admin_token_file: Path | None = field(
        default=None,
        metadata=about(
            "lines of name:token; who sends one may roll back, pin and resume. Without it nobody may",
            metavar="FILE",
            is_file=True,
        ),
    )
    fleet: tuple[str, ...] = field(
        default=(),
        metadata=about(
            "another server of the same fleet; may be repeated (a variable has them with semicolons). The page shows "
            "how all of them stand. They are asked while somebody looks, with HOTDELTA_TOKEN where they want a token",
            metavar="URL",
        ),
    )
    loadable_dir: Path | None = field(
        default=None,
        metadata=about(
            "orders may add models whose directories are below this one. Without it only flags and the file of "
            "--config say which models there are: an export is a program, and who adds one runs it",
            metavar="DIR",
        ),
    )
    ready_wait_seconds: float = field(
        default=60.0,
        metadata=about(
            "with several models: so long after its start the server is not ready before all of them are; then one "
            "that can be asked is enough",
            bounds=(0, 3600),
        ),
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            check(setting, getattr(self, setting.name))
        for url in self.fleet:
            require_url("--fleet", url)
        _require_together(self)
        if self.grpc_port and self.grpc_port == self.port:
            raise ConfigurationError(
                f"--grpc-port is {self.grpc_port}, as --port is", hint="give each a port of its own"
            )
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
