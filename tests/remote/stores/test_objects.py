"""Object stores keep the contract, and what goes wrong is told in our words and without secrets. On a real server."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hotdelta.errors import ConfigurationError, ObjectMissingError, StoreError
from hotdelta.remote.stores.contract import Store
from hotdelta.remote.stores.opening import open_store
from tests.remote.servers import S3Server
from tests.remote.stores.checks_of_a_store import StoreChecks


class TestSeaweedFS(StoreChecks):
    @pytest.fixture
    def store(self, s3_address: str) -> Store:
        return open_store(s3_address)

    def test_stores_of_one_server_do_not_see_each_other(self, seaweedfs: S3Server) -> None:
        one, other = open_store(seaweedfs.new_address()), open_store(seaweedfs.new_address())
        one.put("log/a", b"1")
        assert list(other.list_after("")) == []
        assert [entry.name for entry in one.list_after("")] == ["log/a"]

    def test_a_range_behind_the_end_is_empty(self, store: Store) -> None:
        store.put("data/a", b"123")
        assert bytes(store.get_range("data/a", 3, 5)) == b""
        assert bytes(store.get_range("data/a", 100, 5)) == b""
        assert bytes(store.get_range("data/a", 1, 0)) == b""
        with pytest.raises(ObjectMissingError):
            store.get_range("data/none", 0, 0)


def test_a_server_that_is_away_is_worth_trying_again() -> None:
    store = open_store("s3://bucket/run?endpoint=http://127.0.0.1:9")
    for verb in (
        lambda: store.put("head", b""),
        lambda: store.get("head", max_bytes=1),
        lambda: store.get_range("head", 0, 1),
        lambda: list(store.list_after("log/")),
        lambda: store.delete("head"),
    ):
        with pytest.raises(StoreError, match="is it up") as failed:
            verb()
        assert failed.value.retryable
        assert not isinstance(failed.value, ObjectMissingError)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_refused_and_not_told(
    seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "XYZZYSECRET")
    store = open_store(seaweedfs.new_address())
    with pytest.raises(StoreError, match="credentials") as failed:
        store.put_new("claims/1", b"")
    assert not failed.value.retryable
    assert "XYZZYSECRET" not in str(failed.value)
    assert failed.value.__suppress_context__, "what obstore says would be logged as its cause"


def test_no_credentials_is_said_so(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    # A machine in a cloud has them; nobody answers at this one.
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match="credentials"):
        open_store(seaweedfs.new_address()).get("head", max_bytes=1)


@pytest.mark.parametrize(
    "options", ["timeout=soon", "checksum_algorithm=none", "skip_signature=perhaps", "ca_file=/none"]
)
def test_options_that_the_library_refuses_are_configuration(options: str) -> None:
    with pytest.raises(ConfigurationError):
        open_store(f"s3://bucket/run?{options}")


def test_options_reach_the_library(seaweedfs: S3Server) -> None:
    address = seaweedfs.new_address()
    store = open_store(
        f"{address}&region=eu-central-1&timeout=20s&connect_timeout=2s&checksum_algorithm=SHA256"
    )
    store.put("head", b"1")
    with pytest.raises(StoreError) as failed:
        open_store(f"{address}&skip_signature=true").put("head", b"2")
    assert not failed.value.retryable
    assert open_store(address).get("head", max_bytes=1) == b"1"


def test_the_endpoint_may_be_in_the_environment(seaweedfs: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = seaweedfs.new_address()
    open_store(address).put("head", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweedfs.endpoint)
    assert open_store(address.partition("?")[0]).get("head", max_bytes=1) == b"1"


def test_a_signature_in_an_address_of_azure_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sv=2021-08-06&sp=rw&sig=XYZZYSECRET")
    store = open_store("az://container/run?account_name=models&endpoint=http://127.0.0.1:9/models")
    with pytest.raises(StoreError) as failed:
        store.put("head", b"")
    assert failed.value.retryable
    assert "XYZZYSECRET" not in str(failed.value)


class _ListsAll(BaseHTTPRequestHandler):
    """Does not know that a listing may begin behind a name, as older servers of Azure's protocol do not."""

    def do_GET(self) -> None:
        listed = "".join(
            f"<Contents><Key>run/log/{name}</Key><Size>1</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for name in "abc"
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{listed}</ListBucketResult>".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nobody reads it."""


def test_a_server_that_lists_all_does_not_bring_old_names_back() -> None:
    with HTTPServer(("127.0.0.1", 0), _ListsAll) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            endpoint = f"http://127.0.0.1:{server.server_address[1]}"
            store = open_store(f"s3://bucket/run?endpoint={endpoint}&skip_signature=true")
            assert [entry.name for entry in store.list_after("log/", "log/a")] == ["log/b", "log/c"]
            assert [entry.name for entry in store.list_after("log/")] == ["log/a", "log/b", "log/c"]
        finally:
            server.shutdown()
            thread.join()


def test_a_bucket_that_is_not_there_is_not_an_object_that_is_not_there(rclone: S3Server) -> None:
    store = open_store(rclone.address("run").replace("s3://tests/", "s3://nobody/"))
    with pytest.raises(StoreError, match="is there such a bucket") as failed:
        store.get("head", max_bytes=1)
    assert not isinstance(failed.value, ObjectMissingError)
    with pytest.raises(StoreError, match="is there such a bucket"):
        list(store.list_after("log/"))
