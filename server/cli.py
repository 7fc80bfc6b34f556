"""The command `server`: answers predictions over HTTP while the model is updated underneath."""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field
from types import FrameType
from typing import TYPE_CHECKING, Any

from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.logs import JsonFormatter, event
from hotdelta.quality_probe import Probe
from hotdelta.quiet_import import quiet_import
from hotdelta.sanity_limits import SanitySettings, describe_limits
from server.configuration import Configuration, all_settings, read_configuration
from server.log_writer import log_to_stderr
from server.model_settings import ModelSettings
from server.served_model import ServedModel
from server.setting_values import flag_name, parse, variable_name
from server.tls import TlsFiles

if TYPE_CHECKING:
    from loader import HoldBack
    from server.models.fleet import Fleet
    from server.models.leader import Leader
    from server.rpc.listening import RpcServer

EXIT_FAILED = 1
EXIT_USAGE = 2
# The name of a variable, not a token.
READING_TOKEN_VARIABLE = "HOTDELTA_TOKEN"  # noqa: S105

# By name: under `python -m server.cli` it is __main__.
logger = logging.getLogger("server.cli")

_EPILOG = f"""\
limits for --sanity, with their defaults (max_abs of variables that are no tables: 1e+30):
{describe_limits()}

examples:
  # follow a trainer that writes to run/; what `exporter` puts into export/ is served
  server --export-dir export --checkpoint-dir run

  # the same from an object store (pip install 'hotdelta[s3]'); credentials are in the environment
  server --export-dir s3://models/ranker/export --checkpoint-dir s3://models/ranker/run

  # serve what is in export/ (also from hotdelta.io.save_inference_model) as it is: nothing updates it
  server --export-dir export

  # ask it (any Content-Type), and ask it what it serves
  curl -d '{{"instances": [[1, 2, 3]]}}' http://127.0.0.1:8000/predict
  curl http://127.0.0.1:8000/model/version

  # read your own writes: wait up to a second for a position that the trainer has committed
  curl -d '{{"instances": [[1, 2, 3]], "min_position": "3.17", "wait_ms": 1000}}' http://127.0.0.1:8000/predict

  # go back to a position and stay there, also after a restart; tokens holds a line ops:TOKEN
  server --export-dir export --checkpoint-dir run --admin-token-file tokens --state-dir state
  HOTDELTA_ADMIN_TOKEN=TOKEN hotdelta rollback http://127.0.0.1:8000 3.16

  # quarantine updates of the table users with a value over 50, or that touch more than a tenth of it
  server --export-dir export --checkpoint-dir run --sanity users:max_abs=50 --sanity users:max_touched_share=0.1

  # two models in one process, and a name for clients that an order moves from one to the other
  server --model old=old/export,old/run --model new=new/export,new/run --label prod=old --default-model prod \\
      --admin-token-file tokens
  HOTDELTA_ADMIN_TOKEN=TOKEN hotdelta label http://127.0.0.1:8000 prod new

  # the same from a file, which SIGHUP reads again: models come and go without a restart
  server --config models.toml

  # undo and quarantine updates after which the answers to labelled requests get worse; docs/serving.md shows the file
  server --export-dir export --checkpoint-dir run --probe probe.jsonl

  # what the canary has served for ten minutes, and neither quarantined nor rolled back
  server --export-dir export --checkpoint-dir run --behind-server http://canary:8000 --behind-seconds 600

  # and show on the page of the canary how the others stand
  server --export-dir export --checkpoint-dir run --fleet http://replica-1:8000 --fleet http://replica-2:8000

  # TLS, and predictions only for those who send one of the tokens in a file; both are read again when they are replaced
  server --export-dir export --tls-cert server.pem --tls-key server.key --predict-token-file predict-tokens

  # in a container, with log lines for machines
  HOTDELTA_LOG_FORMAT=json server --export-dir /data/export --checkpoint-dir /data/run --host 0.0.0.0

Neither directory needs to exist yet, nor anything in a store: the server waits, and GET /readyz says for what. Every
flag can be given as an environment variable: --max-batch-size is HOTDELTA_MAX_BATCH_SIZE. The address is printed to
standard output, log lines go to standard error; with --log-format json both are JSON. SIGTERM, Ctrl-C and, without
--config, SIGHUP let requests in flight finish. Exit codes: 0 stopped, 1 it could not start (the reason is on standard
error), 2 wrong usage.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    flags = vars(_parser().parse_args(arguments))
    _hear_signals()

    def read() -> Configuration:
        return read_configuration(flags, os.environ)

    try:
        configuration = read()
    except ConfigurationError as error:
        print(f"server: {error}", file=sys.stderr)
        return EXIT_USAGE
    log = log_to_stderr(configuration.server.log_format)
    try:
        return _serve(configuration, read)
    except HotdeltaError as error:
        if configuration.server.log_format == "json":
            event(logger, logging.ERROR, "cannot start", error=error)
        else:
            log.say(f"server: {error}")
        return EXIT_FAILED


def _serve(configuration: Configuration, read: Callable[[], Configuration]) -> int:
    from server.http.listening import HangUps, bind, run

    hang_ups = HangUps() if configuration.file is not None else None
    settings = configuration.server
    tls = TlsFiles.of(settings)
    # Before the seconds that TensorFlow takes to import: a port that is taken, or a key that is not the certificate's,
    # should be heard of at once.
    if tls is not None:
        tls.context()
    listener = bind(settings.host, settings.port)
    if settings.grpc_port:
        # gRPC opens it by itself, and later.
        bind(settings.host, settings.grpc_port, flag="--grpc-port").close()
    for model in configuration.models:
        named = {} if configuration.is_one_model else {"model": model.model_name}
        event(
            logger,
            logging.INFO,
            "starting",
            **named,
            export_dir=model.export_dir,
            checkpoint_dir=model.checkpoint_dir or "none",
            pid=os.getpid(),
        )
    with quiet_import():
        import loader  # noqa: F401 - before the first model, whatever becomes of that
    from server.app import create_app
    from server.garbage import freeze

    app = create_app(
        configuration,
        functools.partial(_make_loader, is_one_model=configuration.is_one_model),
        reread=read if hang_ups is not None else None,
        after_removal=freeze,
        reading_token=os.environ.get(READING_TOKEN_VARIABLE, ""),
    )
    if hang_ups is not None:
        hang_ups.when_heard = _Rereading(app.state.fleet).begin
    announce = _json_announcement if settings.log_format == "json" else _announcement
    rpc: RpcServer | None = app.state.rpc
    run(
        app,
        listener,
        stop_seconds=settings.stop_seconds,
        limits=app.state.limits,
        tls=tls,
        announcement=lambda url: announce(url, rpc),
        hang_ups=hang_ups,
        leave_others=app.state.leave_others,
        front_ends=app.state.front_ends,
    )
    event(logger, logging.INFO, "stopped")
    if not app.state.is_at_rest:
        _leave_at_once()
    return 0


class _Rereading:
    """What SIGHUP does where there is a file: nobody waits for it, so the log says what came of it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        try:
            await self._fleet.reload()
        except HotdeltaError as error:
            event(logger, logging.ERROR, "the models stay as they are", reason=error)


def _make_loader(settings: ModelSettings, *, is_one_model: bool) -> ServedModel:
    from loader import Loader, LoaderSettings, StaticLoader
    from server.garbage import AfterSwap
    from server.models.mirrored import LocalPlaces, LookAgain, make_mirrored

    # With several the log says which one each line is about.
    name = None if is_one_model else settings.model_name

    sanity = SanitySettings.changed_by(settings.sanity)
    probe = None if settings.probe is None else Probe.read(settings.probe)

    def make_local(places: LocalPlaces) -> tuple[ServedModel, LookAgain]:
        if places.checkpoint_dir is None:
            only_exports = StaticLoader(
                places.export_dir,
                poll_seconds=settings.poll_seconds,
                sanity=sanity,
                after_swap=AfterSwap(),
                name=name,
                warm_up_rows=settings.max_batch_size,
                probe=probe,
            )
            return only_exports, lambda _: only_exports.look_again()
        chosen = LoaderSettings(
            export_dir=places.export_dir,
            checkpoint_dir=places.checkpoint_dir,
            poll_seconds=settings.poll_seconds,
            # What a mirror brings it tells by itself.
            is_polling_only=settings.polling_only or places.checkpoint_dir != settings.checkpoint_dir,
            undo_bytes=settings.undo_bytes,
            full_diff_bytes=settings.full_diff_bytes,
            sanity=sanity,
            pin=places.pin,
            state_dir=settings.state_dir,
            signing_key_file=settings.signing_key_file,
            tensorboard_dir=settings.tensorboard_dir,
            name=name,
            warm_up_rows=settings.max_batch_size,
            probe=probe,
        )
        hold_back, leader = _make_leader(settings)
        follower = Loader(
            chosen,
            after_swap=AfterSwap(),
            hold_back=hold_back,
            companions=[leader] if leader is not None else [],
            found_at=places.found_at,
        )
        return follower, follower.look_again

    return make_mirrored(settings, make_local, told={} if name is None else {"model": name})


def _make_leader(settings: ModelSettings) -> tuple[HoldBack | None, Leader | None]:
    """What is held back, and who is asked how far to go."""
    from loader import HoldBack, read_statistics
    from server.models.leader import Leader

    url = settings.behind_server
    if not settings.behind_seconds and url is None:
        return None, None
    hold_back = HoldBack(
        settings.behind_seconds,
        has_leader=url is not None,
        clock=time.monotonic,
        wall_clock=time.time,
        taken=read_statistics(settings.state_dir).until,
    )
    if url is None:
        return hold_back, None
    token = os.environ.get(READING_TOKEN_VARIABLE, "")
    return hold_back, Leader(url, hold_back, model=settings.model_name, token=token)


def _leave_at_once() -> None:
    """While TensorFlow runs in another thread, Python cannot end in order. All that is lost is memory."""
    logging.shutdown()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="server",
        description="Serve a model that is updated while it answers: each delta of the trainer, a moment later.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for setting in all_settings():
        _add_flag(parser, setting)
    return parser


def _add_flag(parser: argparse.ArgumentParser, setting: Field[Any]) -> None:
    if setting.default is MISSING:
        help_text = f"{setting.metadata['help']} (required)"
    else:
        help_text = f"{setting.metadata['help']} (default: {_shown(setting.default)})"
    if setting.type == "bool":
        parser.add_argument(flag_name(setting), action="store_true", default=None, help=help_text)
        return

    def convert(text: str) -> Any:
        try:
            return parse(setting, text)
        except ConfigurationError as error:
            raise argparse.ArgumentTypeError(str(error).removeprefix(f"{flag_name(setting)}: ")) from error

    parser.add_argument(
        flag_name(setting),
        action="extend" if isinstance(setting.default, tuple) else "store",
        type=convert,
        choices=setting.metadata.get("choices"),
        metavar=setting.metadata.get("metavar") or _metavar(setting),
        help=f"{help_text} [{variable_name(setting)}]",
    )


def _shown(default: object) -> str:
    return "none" if default is None or default == () else str(default)


def _metavar(setting: Field[Any]) -> str | None:
    if setting.metadata.get("choices"):
        return None
    for ending in ("seconds", "bytes", "ms"):
        if setting.name.endswith(ending):
            return ending.upper()
    return "N" if setting.type.startswith("int") else "TEXT"


def _hear_signals() -> None:
    signal.signal(signal.SIGTERM, _exit_quietly)
    signal.signal(signal.SIGINT, _exit_quietly)
    # Under nohup it is ignored, and stays that.
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _terminate)


def _terminate(_number: int, _frame: FrameType | None) -> None:
    """The terminal was closed. Whoever hears SIGTERM now knows what to do."""
    signal.raise_signal(signal.SIGTERM)


def _exit_quietly(_number: int, _frame: FrameType | None) -> None:
    """A signal while nothing is served yet: there is nothing to finish.

    Not with an exception, which would be lost in a destructor or in an import that catches everything.
    """
    os._exit(0)


def _announcement(url: str, rpc: RpcServer | None) -> str:
    return f"listening on {url}" if rpc is None else f"listening on {url}\nlistening on {rpc.url}"


def _json_announcement(url: str, rpc: RpcServer | None) -> str:
    http = _record("listening", url)
    return http if rpc is None else f"{http}\n{_record('listening for gRPC', rpc.url)}"


def _record(phrase: str, url: str) -> str:
    said = {"name": logger.name, "levelname": "INFO", "phrase": phrase, "fields": {"url": url}}
    return JsonFormatter().format(logging.makeLogRecord(said))


if __name__ == "__main__":
    sys.exit(main())
