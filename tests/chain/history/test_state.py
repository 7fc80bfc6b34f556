"""Finding a state: the newest that is whole, a position or none, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotdelta.chain import Kind, Listing, Manifest, Position, Refused, Scanner
from hotdelta.chain.format import names
from hotdelta.chain.history.signing import KEY_FILE_VARIABLE
from hotdelta.chain.history.state import ChainState, find_full_state, find_state, first_damage, peek_state
from hotdelta.errors import ChainError, ConfigurationError, DamagedError, HoleError
from tests.chain.table_chain import TableChain


@pytest.fixture
def chain(tmp_path: Path) -> TableChain:
    """Positions 1.1 to 1.5; 1.4 is a full, too."""
    chain = TableChain(tmp_path)
    chain.delta([1])
    chain.delta([2])
    chain.close_with_full([3])
    chain.delta([4])
    return chain


def spoil(
    chain: TableChain, position: str, kind: Kind = Kind.DELTA, role: str = names.ROLE_SERVING
) -> Manifest:
    wanted = Position.parse(position)
    manifest = next(m for m in chain.manifests if m.position == wanted and m.kind is kind)
    path = chain.path(manifest, role)
    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
    return manifest


def found(state: ChainState | None) -> tuple[str, int]:
    """The position of the full and the number of deltas after it."""
    assert state is not None
    return str(state.full.position), len(state.deltas)


def test_newest_state_is_the_newest_full_and_the_deltas_after_it(chain: TableChain) -> None:
    state = find_state(chain.run_dir)

    assert found(state) == ("1.4", 1)
    assert state is not None
    assert state.newest == chain.manifests[-1]
    assert not state.problems


def test_empty_directory_has_no_state(tmp_path: Path) -> None:
    assert find_state(tmp_path) is None
    assert find_state(tmp_path, position=Position(1, 1)) is None
    assert peek_state(tmp_path) is None
    assert find_full_state(tmp_path, "model.ckpt-1") is None


def test_damage_is_gone_around_and_told(chain: TableChain) -> None:
    spoil(chain, "1.4", Kind.FULL)
    state = find_state(chain.run_dir)
    assert found(state) == ("1.1", 4)
    assert state is not None
    assert ["digest" in str(problem) for problem in state.problems] == [True]

    spoil(chain, "1.3")
    state = find_state(chain.run_dir)
    assert found(state) == ("1.1", 1)


def test_files_of_other_roles_are_not_looked_at(chain: TableChain) -> None:
    spoil(chain, "1.5", role=names.ROLE_TRAINING)

    assert found(find_state(chain.run_dir, roles=names.SERVING_ROLES)) == ("1.4", 1)
    assert found(find_state(chain.run_dir)) == ("1.4", 0)


def test_position_is_given_or_refused(chain: TableChain) -> None:
    assert found(find_state(chain.run_dir, position=Position(1, 3))) == ("1.1", 2)
    with pytest.raises(ConfigurationError, match=r"holds no position 2\.1.*it holds 1\.1, .*1\.5"):
        find_state(chain.run_dir, position=Position(2, 1))


def test_position_is_reached_around_a_damaged_full(chain: TableChain) -> None:
    spoil(chain, "1.4", Kind.FULL)

    assert found(find_state(chain.run_dir, position=Position(1, 5))) == ("1.1", 4)


def test_damaged_position_is_an_error_that_names_the_file(chain: TableChain) -> None:
    manifest = spoil(chain, "1.3")

    with pytest.raises(DamagedError, match="digest") as caught:
        find_state(chain.run_dir, position=Position(1, 3))
    assert caught.value.path == chain.path(manifest, names.ROLE_SERVING)


def test_position_behind_a_hole_is_an_error(chain: TableChain) -> None:
    missing = next(m for m in chain.manifests if m.position == Position(1, 2))
    (chain.run_dir / names.DELTA_DIRECTORY / names.manifest_name(missing.prefix)).unlink()

    with pytest.raises(HoleError, match=r"1\.3 cannot be reached: the newest that can is 1\.1"):
        find_state(chain.run_dir, position=Position(1, 3))


def test_nothing_that_can_be_used_is_an_error_with_what_else_can_be_done(chain: TableChain) -> None:
    for position in ("1.1", "1.4"):
        spoil(chain, position, Kind.FULL)

    with pytest.raises(ChainError, match=r"no full checkpoint .* can be used: .*digest.*; try magic"):
        find_state(chain.run_dir, otherwise="; try magic")


def test_directory_that_cannot_be_listed_may_hold_newer_commits(chain: TableChain) -> None:
    listing = Scanner(chain.run_dir).scan()
    refused = Refused(chain.run_dir / names.DELTA_DIRECTORY, "it cannot be listed", is_unread=True)

    with pytest.raises(ChainError, match="newer commits may be in it"):
        find_state(chain.run_dir, listing=replace(listing, refused=(refused,)))


def test_one_schema_waits_for_the_next_full_of_it(tmp_path: Path) -> None:
    chain = TableChain(tmp_path)
    chain.schema = "6" * 64
    chain.delta([1])
    with pytest.raises(ChainError, match="no full checkpoint"):
        find_state(tmp_path, has_one_schema=True)
    assert found(find_state(tmp_path)) == ("1.1", 1)

    chain.close_with_full([2])
    chain.delta([3])
    assert found(find_state(tmp_path, has_one_schema=True)) == ("1.3", 1)


def test_with_a_key_nothing_counts_that_it_did_not_sign(
    chain: TableChain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"k" * 32)
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key))

    with pytest.raises(ChainError, match="not signed"):
        find_state(chain.run_dir)
    with pytest.raises(ChainError, match="not signed"):
        peek_state(chain.run_dir)
    with pytest.raises(ChainError, match="not signed"):
        find_full_state(chain.run_dir, chain.manifests[0].prefix)


def test_full_is_found_by_its_name_whatever_came_after_it(chain: TableChain) -> None:
    first = chain.manifests[0]
    assert find_full_state(chain.run_dir, first.prefix) == ChainState(chain.run_dir, first)

    spoil(chain, "1.1", Kind.FULL)
    with pytest.raises(DamagedError):
        find_full_state(chain.run_dir, first.prefix)


def test_peeking_looks_at_manifests_alone(chain: TableChain) -> None:
    spoil(chain, "1.5")

    assert found(peek_state(chain.run_dir)) == ("1.4", 1)
    state = peek_state(chain.run_dir, listing=Listing(tuple(chain.manifests[:3])))
    assert found(state) == ("1.1", 2)
    assert state is not None
    assert found(state.newest_alone()) == ("1.1", 1)


def test_first_damage_in_the_order_of_commits_is_the_one_that_counts(tmp_path: Path) -> None:
    chain = TableChain(tmp_path, rows=200_000)
    for _ in range(4):
        chain.delta([1, 2])
    assert first_damage(tmp_path, chain.manifests) is None
    for manifest in (chain.manifests[4], chain.manifests[2]):
        chain.path(manifest, names.ROLE_TRAINING).unlink()

    damage = first_damage(tmp_path, chain.manifests)
    assert damage is not None
    assert damage[0] == chain.manifests[2]
    chain.path(chain.manifests[0], names.ROLE_TRAINING).unlink()
    damage = first_damage(tmp_path, chain.manifests)
    assert damage is not None
    assert damage[0] == chain.manifests[0]
