"""An address opens its store, or says what is wrong with it, and never repeats a secret."""

from __future__ import annotations

import subprocess
import sys

import pytest

from hotdelta.errors import ConfigurationError
from hotdelta.remote.stores.address import SCHEMES, Address, is_address
from hotdelta.remote.stores.opening import open_store


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket",
        "s3://bucket/a/prefix",
        "s3://bucket/run?endpoint=http://127.0.0.1:8333&region=eu-1",
        "gs://bucket/run=1/x@y",
        "az://container/run?account_name=models",
        "hdfs://namenode:8020/models/run",
        "hdfs:///models/run",
        "file:///var/run%20s/a",
        "memory://name",
    ],
)
def test_an_address_is_shown_as_it_was_written(text: str) -> None:
    assert is_address(text)
    assert str(Address.parse(text)) == text
    assert Address.parse(text).scheme in SCHEMES


@pytest.mark.parametrize(
    "text", ["runs/a", "/runs/a", "./s3:/x", "C:/runs", "http://host:8500", "https://host", "s3:/b"]
)
def test_paths_and_servers_are_no_addresses(text: str) -> None:
    assert not is_address(text)


def test_slashes_and_capitals_do_not_make_another_place() -> None:
    assert Address.parse("S3://bucket//a/b/") == Address.parse("s3://bucket/a/b")
    assert str(Address.parse("file://localhost/a/")) == "file://localhost/a"


@pytest.mark.parametrize(
    "text, said",
    [
        ("ftp://host/x", "ftp:// is no address"),
        ("runs/a", "a path is no address"),
        ("s3:///x", "no bucket"),
        ("s3://bucket/a/../b", "in its path"),
        ("s3://bucket/ü", "in its path"),
        ("s3://bucket/a#b", "in its path"),
        ("s3://bucket/a\n", "control character"),
        ("s3://bucket/a?nonsense", "cannot be read"),
        ("s3://bucket/a?regoin=x", "not known: regoin"),
        ("memory://a?region=x", "it has none"),
        ("s3://bucket?endpoint=10.0.0.7", "no URL"),
        ("s3://bucket?endpoint=http://h:99999", "no URL"),
        ("file://host/a", "names no path"),
        ("memory://", "no name"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        open_store(text)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AK:XYZZY@bucket/run",
        "s3://bucket/run?access_key_id=XYZZY&secret_access_key=XYZZY",
        "s3://bucket/run?session_token=XYZZY",
        "az://container/run?account_name=a&sas_token=XYZZY",
        "s3://bucket/run?endpoint=http://u:XYZZY@host",
        "gs://bucket/run?service_account_key=XYZZY",
        "hdfs://user:XYZZY@host/run",
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ConfigurationError, match="environment") as refused:
        open_store(text)
    assert "XYZZY" not in str(refused.value)


def test_stores_in_memory_have_names() -> None:
    open_store("memory://test-opening").put("head", b"1")
    assert open_store("memory://test-opening").get("head", max_bytes=1) == b"1"
    assert list(open_store("memory://test-opening-other").list_after("")) == []


@pytest.mark.parametrize(
    "library, extra, address",
    [
        ("obstore", "s3", "s3://b/x"),
        ("obstore", "s3", "gs://b/x"),
        ("hdfs_native", "hdfs", "hdfs://host/x"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    library: str, extra: str, address: str
) -> None:
    program = f"""
import sys
sys.modules[{library!r}] = None
from hotdelta.errors import ConfigurationError
from hotdelta.remote.stores.opening import open_store
open_store("memory://x"), open_store("file:///tmp")
try:
    open_store({address!r})
except ConfigurationError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == (
        f"{address} needs {library.replace('_', '-')}, which is not installed. run: pip install 'hotdelta[{extra}]'\n"
    )
