"""A process that asks POST /predict all the time, and notes when it was answered from a position for the first time.

`python -m benchmarks._asking PORT PAUSE_SECONDS BODY` prints a line for each: position and time. It ends when told to.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time


def ask(port: int, pause_seconds: float, body: bytes) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port)
    last = ""
    stop = threading.Event()
    while not stop.wait(pause_seconds):
        connection.request("POST", "/predict", body)
        answer = connection.getresponse()
        answer.read()
        now = time.time()
        position = answer.headers["X-Model-Version"]
        if answer.status != http.HTTPStatus.OK:
            raise SystemExit(f"not an answer: {answer.status}")
        if position != last:
            print(position, now, flush=True)
            last = position


if __name__ == "__main__":
    try:
        ask(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3].encode())
    except KeyboardInterrupt:
        sys.exit()
