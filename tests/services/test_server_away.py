"""The Prefect server restarts in the middle of a long stage: no work is lost."""

from __future__ import annotations

from tests.services.lab import Lab, long_training
from tests.services.servers import answers, wait_for


def test_a_server_that_restarts_loses_no_work(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    run = lab.ask("generate_queries", *long_training(3000))
    child = lab.child_in("train_generator", run)

    lab.site.server.stop()
    try:
        assert not answers(lab.url)
        assert not lab.trained(child)
        wait_for(lambda: lab.trained(child), 5, "the stage ends without a server")
    finally:
        lab.site.restart()

    if lab.end(run, 5)["state_name"] != "Completed":  # the server came too late for it
        lab.retry(run)
        lab.completed(run, 5)
    stages = sorted(reference.split("/")[0] for reference in lab.manifests())
    assert stages.count("train_generator") == stages.count("generate_queries") == 1
    assert not (lab.store / ".damaged").exists()  # where a second build would have put the first
