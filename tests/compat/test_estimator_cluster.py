"""train_and_evaluate in a cluster: a parameter server, a chief, a worker and an evaluator, each a process."""

from __future__ import annotations

from pathlib import Path

from hotdelta.chain import Kind
from tests.compat.chain_states import links_after, manifests, newest_state, state_of
from tests.forks import Forks
from tests.reserved_ports import reserved_ports

MAX_STEPS = 20


def test_each_task_does_what_tf_config_says(tmp_path: Path, forks: Forks) -> None:
    model_dir, jobs = tmp_path / "model", ("ps", "chief", "worker", "evaluator")
    logs = {job: tmp_path / f"{job}.log" for job in jobs}
    with reserved_ports(3) as ports:
        cluster = {job: [f"localhost:{port}"] for job, port in zip(jobs, ports, strict=False)}
        tasks = {
            job: forks.start("estimator", logs[job], model_dir=str(model_dir), cluster=cluster, job=job)
            for job in jobs
        }
        try:
            for job in ("worker", "chief", "evaluator"):
                assert tasks[job].wait() == 0, logs[job].read_text()[-4000:]
            assert tasks["ps"].poll() is None
        finally:
            for task in tasks.values():
                task.kill()
    said = {job: logs[job].read_text() for job in jobs}
    assert [("evaluated nothing" in said[job]) for job in ("chief", "worker")] == [True, True]
    assert f"evaluated {MAX_STEPS}" in said["evaluator"]
    assert manifests(model_dir, Kind.FULL)[-1].step == MAX_STEPS
    # What the worker trained is in some delta, too: rows that the chief never reads.
    oldest, last = manifests(model_dir, Kind.FULL)[0], newest_state(model_dir)
    replayed = state_of(model_dir, oldest, links_after(model_dir, oldest))
    assert {key: value.tobytes() for key, value in replayed.items()} == {
        key: value.tobytes() for key, value in last.items()
    }
