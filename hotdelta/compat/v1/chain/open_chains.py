"""The chains that this process writes, by directory: those who restore have to know of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hotdelta.tensorflow_internals import session_below

if TYPE_CHECKING:
    from hotdelta.compat.v1.chain.session_chain import SessionChain

_open_chains: dict[Path, SessionChain] = {}


def close_abandoned(run_dir: Path, chain: SessionChain) -> None:
    """A training that ended with an exception never says so to its hooks, and would keep the directory locked."""
    abandoned = _open_chains.get(run_dir.resolve())
    if abandoned is not None and abandoned is not chain and abandoned.is_session_closed():
        abandoned.close()


def register(run_dir: Path, chain: SessionChain) -> None:
    """Who has the lock of the directory."""
    _open_chains[run_dir.resolve()] = chain


def forget(run_dir: Path, chain: SessionChain) -> None:
    """It would keep its Session, and all that the Session holds."""
    if _open_chains.get(run_dir.resolve()) is chain:
        del _open_chains[run_dir.resolve()]


def wait_for_writes(run_dir: Path) -> None:
    """Until the delta that this process is writing there, if any, is committed: a restore must not miss it."""
    chain = _open_chains.get(run_dir.resolve())
    if chain is not None:
        chain.wait()


def is_saved(session: Any) -> bool:
    """Whether what changes in this Session goes into a chain now."""
    session = session_below(session)
    return any(
        chain.is_started_for(session) and not chain.is_session_closed() for chain in _open_chains.values()
    )
