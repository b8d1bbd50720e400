"""A cancelled training saves a checkpoint, frees its lock, ends Cancelled, and goes on from there when retried."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from storage.store import Store
from tests.services.lab import Lab, laboratory, long_training
from tests.services.servers import wait_for

STEPS = 1500


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with laboratory(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


def test_a_cancelled_run_cancels_its_child_which_saves_and_goes_on_when_retried(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    run = lab.ask("train_generator", *long_training(STEPS))
    child = lab.child_in("train_generator", run)

    lab.cancel(run)

    assert lab.end(run, 3)["state_name"] == "Cancelled"
    assert lab.end(child["id"], 3)["state_name"] == "Cancelled"
    work, reached = lab.work_folder(child), lab.steps(child)
    [saved] = [int(path.name) for path in (work / "scratch" / "training").iterdir()]
    assert 2 < saved < STEPS
    assert reached - 1 <= saved <= reached  # the step that it was in when the signal came
    assert not Store(lab.store).is_being_built(work)

    lab.retry(run)
    again = lab.child_in("train_generator", run)
    assert again["id"] == child["id"]
    assert again["run_count"] == 2
    wait_for(lambda: lab.steps(again) > reached, 3, "it goes on")
    lab.completed(run, 6)
    [log] = lab.store.glob(f"train_generator/{child['name'].split()[-1]}*/logs/metrics.jsonl")
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == list(range(1, STEPS + 1))  # none was logged twice, none left out
    assert {row["state_name"] for row in lab.children(run)} == {"Completed"}


def test_a_child_that_waits_for_a_worker_is_cancelled_too(lab: Lab) -> None:
    blocking = lab.ask("train_generator", *long_training(4000, seed=2))
    busy = lab.child_in("train_generator", blocking)
    run = lab.ask("train_generator", *long_training(STEPS, seed=3))
    waiting = wait_for(lambda: lab.children(run), 3, "the child is there")[0]
    assert waiting["state_type"] != "RUNNING"

    lab.cancel(run)
    lab.cancel(blocking)

    assert lab.end(run, 3)["state_name"] == "Cancelled"
    assert lab.end(waiting["id"], 3)["state_name"] == "Cancelled"
    assert lab.end(busy["id"], 3)["state_name"] == "Cancelled"
    assert lab.steps(waiting) == 0
