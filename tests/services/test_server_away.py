"""The Prefect server restarts in the middle of a long stage, and in the middle of a chain: no work is lost."""

from __future__ import annotations

from pathlib import Path

from tests.services.lab import Lab, laboratory, long_training
from tests.services.servers import answers, wait_for


def test_a_server_that_restarts_loses_no_work(tmp_path: Path) -> None:
    with laboratory(tmp_path) as lab:
        lab.work("gpu", "gpu-0")
        run = lab.ask("generate_queries", *long_training(600))
        child = lab.child_in("train_generator", run)
        port, before = int(lab.url.split(":")[2].split("/")[0]), lab.steps(child)

        lab.server.stop()
        assert not answers(lab.url)
        wait_for(lambda: lab.trained(child) or lab.steps(child) > before + 50, 3, "it works without a server")
        wait_for(lambda: lab.trained(child), 4, "it ends without a server")
        lab.start(port)

        finish(lab, run)
        assert len([each for each in lab.manifests() if each.startswith("train_generator/")]) == 1
        assert any(each.startswith("generate_queries/") for each in lab.manifests())
        assert not (lab.store / ".damaged").exists()


def finish(lab: Lab, run: str) -> None:
    """See the run to its end; where the server came too late for it, retry it as an operator does."""
    if lab.end(run, 5)["state_name"] != "Completed":
        lab.retry(run)
        lab.completed(run, 5)
