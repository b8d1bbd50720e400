"""The Prefect server restarts in the middle of a long stage: no work is lost."""

from __future__ import annotations

from tests.services.lab import Lab, long_training, process_of
from tests.services.servers import answers, run_of, wait_for


def test_a_server_that_restarts_loses_no_work(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    run = lab.ask("generate_queries", *long_training(1500))
    child = lab.child_in("train_generator", run)
    process = process_of(run_of(lab.url, run))

    lab.site.server.stop()
    try:
        assert not answers(lab.url)
        assert not lab.trained(child)
        wait_for(lambda: lab.trained(child), 5, "the stage ends without a server")
    finally:
        lab.site.restart()

    # No heartbeat has come, so the run may be called Crashed for a moment. Its process goes on and ends by itself.
    wait_for(lambda: not process.is_running(), 5, "the run's process ends")
    assert "Crash detected" not in lab.logs(run)
    if lab.end(run)["state_name"] != "Completed":  # the server came too late for the child
        lab.retry(run)
        lab.completed(run)
    stages = sorted(reference.split("/")[0] for reference in lab.manifests())
    assert stages.count("train_generator") == stages.count("generate_queries") == 1
    assert not (lab.store / ".damaged").exists()  # where a second build would have put the first
