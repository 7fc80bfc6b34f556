"""The command `hotdelta`: look at a chain or at a server that follows it, and give orders. Never imports TensorFlow.

`parser` knows every argument and imports nothing that takes time; each command is a module with a `run(options)` in the
room of what it looks at (a chain's history, its rows, servers, everything), and is imported when it is asked for. What
they raise becomes a line on standard error and an exit code here.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from hotdelta.cli.parser import make_parser
from hotdelta.errors import ConfigurationError, HotdeltaError
from hotdelta.terminal import progress_bars

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_MODULES = {
    "log": "hotdelta.cli.history.log",
    "chain": "hotdelta.cli.history.listing",
    "show": "hotdelta.cli.history.show",
    "describe": "hotdelta.cli.history.listing",
    "verify": "hotdelta.cli.history.verify",
    "diff": "hotdelta.cli.rows.diff",
    "key": "hotdelta.cli.rows.key",
    "compact": "hotdelta.cli.history.compact",
    "copy": "hotdelta.cli.stores.copy",
    "completion": "hotdelta.cli.completion",
    "doctor": "hotdelta.cli.doctor",
    "tail": "hotdelta.cli.servers.tail",
    "fleet": "hotdelta.cli.servers.fleet",
    "order": "hotdelta.cli.stores.order",
    "rollback": "hotdelta.cli.servers.orders",
    "pin": "hotdelta.cli.servers.orders",
    "resume": "hotdelta.cli.servers.orders",
    "release": "hotdelta.cli.servers.orders",
    "label": "hotdelta.cli.servers.orders",
    "reload": "hotdelta.cli.servers.orders",
}


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        code = run_command(make_parser().parse_args(arguments))
        if sys.stdout is not None:
            # Or what cannot be written any more shows at the end of Python, which complains in its own way.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return _fail("stopped", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # `hotdelta log run | head`: nobody reads on.
        _drop_output()
        return EXIT_OK
    except ConfigurationError as error:
        return _fail(error, EXIT_USAGE)
    except HotdeltaError as error:
        return _fail(error, EXIT_FAILED)
    except OSError as error:
        _drop_output()
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_FAILED)
    return code


def run_command(options: argparse.Namespace) -> int:
    """The exit code of the command."""
    module = import_module(_MODULES[options.command])
    with progress_bars():
        code: int = module.run(options)
    return code


def _fail(what: object, code: int) -> int:
    print(f"hotdelta: {what}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Python would try again to write what is left at its exit, and complain once more."""
    with suppress(OSError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
