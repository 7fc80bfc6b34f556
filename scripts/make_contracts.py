"""Writes server/rpc/contracts.binpb, or another file: the messages and services of server/rpc/contracts/*.proto.

They are kept compiled, because a server has no compiler; and as descriptions rather than as Python, which would be good
for few releases of protobuf. tests/server/rpc/test_contracts.py says when they are not what the sources say.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

RPC = Path(__file__).resolve().parent.parent / "server" / "rpc"
SOURCES = RPC / "contracts"
COMPILED = RPC / "contracts.binpb"


def compile_to(target: Path) -> None:
    # In a process of its own: the compiler does not get along with TensorFlow in one.
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={SOURCES}"]
    command += ["--include_imports", f"--descriptor_set_out={target}"]
    command += sorted(str(path) for path in SOURCES.glob("*.proto"))
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    compile_to(Path(sys.argv[1]) if len(sys.argv) > 1 else COMPILED)
