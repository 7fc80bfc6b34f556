"""Who writes the rows of which table, and the proof that those who do see the directory that readers see."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Collection
from pathlib import Path

import tensorflow as tf

from hotdelta.chain.format import names
from hotdelta.chain.write_failure import translated
from hotdelta.errors import ConfigurationError
from hotdelta.train.model.variables import ModelVariables
from hotdelta.train.servers.fetching import fetch, here
from hotdelta.train.tables.server_rows import is_on_servers
from hotdelta.train.tables.sharded import asking_servers, shards_of

SERVERS, COORDINATOR = "servers", "coordinator"


def tables_for_servers(variables: ModelVariables, rows_written_by: str) -> frozenset[str]:
    """The tables of which parameter servers are to write the rows: those that they hold, with all slots."""
    if rows_written_by not in (SERVERS, COORDINATOR):
        raise ConfigurationError(
            f"rows_written_by is {rows_written_by!r}", hint=f'say "{SERVERS}" or "{COORDINATOR}"'
        )
    return frozenset(
        table.key
        for table in variables.tables
        if rows_written_by == SERVERS and all(is_on_servers(item.variable) for item in table.row_variables)
    )


def servers_of(variables: ModelVariables, tables: Collection[str]) -> list[str]:
    """The devices that hold rows of the given tables."""
    return sorted(
        {
            shard.variable.device
            for table in variables.tables
            if table.key in tables
            for item in table.row_variables
            for shard in shards_of(item.variable)
        }
    )


def prove_servers_share(run_dir: Path, servers: Collection[str]) -> None:
    """Each server reads what is written here, and what it writes is read here; else raises ConfigurationError.

    Raises CommitError when nothing can be written here, or a server does not answer.
    """
    for server in servers:
        # Named like a full, so that what a crash leaves of it is swept at the next start.
        question = (
            run_dir.absolute() / f"{names.TEMPORARY_PREFIX}{names.FULL_STEM}probe-{uuid.uuid4().hex[:12]}"
        )
        answer = question.with_name(f"{question.name}-answer")
        with translated("asking parameter servers", run_dir):
            question.write_bytes(question.name.encode())
        try:
            reason = _ask(server, question, answer)
        finally:
            for path in (question, answer):
                with contextlib.suppress(OSError):
                    path.unlink()
        if reason:
            raise ConfigurationError(
                f"parameter server {server} does not share {run_dir.absolute()}: {reason}",
                hint="mount the directory at the same path on every parameter server, writable, or pass "
                f'rows_written_by="{COORDINATOR}"',
            )


def _ask(server: str, question: Path, answer: Path) -> str | None:
    """Why the server cannot write there what is read here; None when it can."""
    with asking_servers(server), tf.device(server):
        try:
            if fetch(_copy_and_read(here(str(question)), here(str(answer)))) != question.name.encode():
                return "it reads something else there"
        except tf.errors.UnavailableError:
            raise
        except tf.errors.OpError as error:
            return str(error.message).splitlines()[0]
    try:
        content = answer.read_bytes()
    except OSError as error:
        return f"what it writes is not found there ({error.strerror})"
    return None if content == question.name.encode() else "what it writes is something else here"


@tf.function(input_signature=[tf.TensorSpec([], tf.string)] * 2)
def _copy_and_read(source: tf.Tensor, target: tf.Tensor) -> tf.Tensor:
    written = tf.raw_ops.WriteFile(filename=target, contents=tf.io.read_file(source))
    with tf.control_dependencies([written]):
        return tf.io.read_file(target)
