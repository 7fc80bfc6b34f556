"""A real NameNode and DataNode as processes. `make test-hdfs` brings their jars, and runs the tests marked `hdfs`."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hotdelta.errors import StoreError
from hotdelta.remote.stores.opening import open_store
from tests.remote.servers import free_ports

VARIABLE = "HOTDELTA_HDFS_JARS"

_LIMIT_SECONDS = 120.0
_OPENED = ("lang", "nio", "io", "lang.reflect")
_JAVA = [
    "-Xmx256m",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/sun.misc=ALL-UNNAMED",
    "--add-exports=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
]
_SERVERS = {
    "namenode": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "datanode": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}


class HdfsServer:
    """One NameNode and one DataNode on loopback."""

    def __init__(self, directory: Path, jars: Path) -> None:
        self._directory = directory
        self._port, self._http_port = free_ports(2)
        self._class_path = ":".join([str(directory), *sorted(map(str, jars.glob("*.jar")))])
        self._processes: list[subprocess.Popen[bytes]] = []
        self._configure()

    def address(self, path: str) -> str:
        return f"hdfs://127.0.0.1:{self._port}/{path}"

    def start(self) -> None:
        self._run("namenode", "-format", "-nonInteractive").wait(_LIMIT_SECONDS)
        self._processes = [self._run(name) for name in _SERVERS]
        store, deadline = open_store(self.address("ready")), time.monotonic() + _LIMIT_SECONDS
        while True:
            try:
                store.put("ready", b"x")
            except StoreError as error:
                if time.monotonic() > deadline or any(
                    process.poll() is not None for process in self._processes
                ):
                    raise AssertionError(f"no HDFS: {error}\n{self._said()}") from error
                time.sleep(0.5)
            else:
                return

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes = []

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = shutil.which("java")
        assert java is not None, "no Java"
        with (self._directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [java, *_JAVA, "-cp", self._class_path, _SERVERS[name], *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )

    def _said(self) -> str:
        return "\n".join((self._directory / f"{name}.log").read_text()[-3000:] for name in _SERVERS)

    def _configure(self) -> None:
        loopback = "127.0.0.1:0"
        settings = {
            "fs.defaultFS": f"hdfs://127.0.0.1:{self._port}",
            "dfs.namenode.name.dir": f"file://{self._directory}/names",
            "dfs.datanode.data.dir": f"file://{self._directory}/blocks",
            "dfs.namenode.http-address": f"127.0.0.1:{self._http_port}",
            "dfs.datanode.address": loopback,
            "dfs.datanode.http.address": loopback,
            "dfs.datanode.ipc.address": loopback,
            "dfs.replication": "1",
            "dfs.namenode.safemode.extension": "0",
            "dfs.webhdfs.enabled": "false",
            "hadoop.tmp.dir": f"{self._directory}/temporary",
        }
        root = ElementTree.Element("configuration")
        for name, value in settings.items():
            setting = ElementTree.SubElement(root, "property")
            ElementTree.SubElement(setting, "name").text = name
            ElementTree.SubElement(setting, "value").text = value
        for site in ("core", "hdfs"):
            ElementTree.ElementTree(root).write(self._directory / f"{site}-site.xml")
        (self._directory / "log4j.properties").write_text(
            "log4j.rootLogger=WARN,console\n"
            "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.console.layout=org.apache.log4j.SimpleLayout\n"
        )
        # Pages for people, without which the servers do not start.
        for name in ("hdfs", "datanode"):
            web = self._directory / "webapps" / name / "WEB-INF"
            web.mkdir(parents=True)
            (web / "web.xml").write_text("<web-app/>")


@contextmanager
def running_hdfs(directory: Path) -> Iterator[HdfsServer]:
    jars = os.environ.get(VARIABLE)
    assert jars, "run: make test-hdfs"
    server = HdfsServer(directory, Path(jars).resolve())
    try:
        server.start()
        yield server
    finally:
        server.stop()
