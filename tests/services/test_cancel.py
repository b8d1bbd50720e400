"""A cancelled training saves a checkpoint, frees its lock, ends Cancelled, and goes on from there when retried."""

from __future__ import annotations

import json
from pathlib import Path

from storage.store.store import Store
from tasks.runtime.work_folder import CHECKPOINTS
from tests.services.lab import Lab, long_training
from tests.services.servers import run_of, wait_for

STEPS = 20_000  # a cancel takes most of a minute to arrive


def logged(work: Path) -> list[int]:
    """The steps in a training's log."""
    lines = (work / "logs" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["step"] for line in lines if line.endswith("}")]


def test_a_cancelled_run_cancels_its_child_which_saves_and_resumes(lab: Lab) -> None:
    lab.work("gpu", "gpu-0")
    run = lab.ask("train_generator", *long_training(STEPS))
    child = lab.endless_child("train_generator", run)

    lab.cancel(run)

    assert lab.end(run, 3)["state_name"] == "Cancelled"
    assert lab.end(child["id"], 3)["state_name"] == "Cancelled"
    work = lab.work_folder(child)
    # A cancel that takes more than a minute to arrive finds a checkpoint that was saved on the way.
    saved = max(int(path.name) for path in (work / CHECKPOINTS).iterdir())
    assert 2 < saved < STEPS
    assert logged(work) == list(range(1, saved + 1))  # the step that it was in when the signal came is the last
    assert not Store(lab.store).is_being_built(work)

    lab.retry(run)
    again = lab.endless_child("train_generator", run)
    assert again["id"] == child["id"]
    assert again["run_count"] == 2
    wait_for(lambda: lab.steps(again) > saved, 3, "it goes on")
    steps = logged(work)  # read once: it grows
    assert steps == list(range(1, len(steps) + 1))  # no step was done twice

    lab.cancel(run)
    lab.end(run, 3)
    lab.retry(run)  # at once: its child still runs, or is being cancelled
    wait_for(lambda: run_of(lab.url, run)["run_count"] == 3 and lab.state(run) == "Running", 3, "the run starts again")
    before = lab.steps(child)
    wait_for(lambda: lab.steps(lab.endless_child("train_generator", run)) > before, 4, "its child goes on")
    assert lab.state(run) == "Running"

    other = lab.ask("train_generator", *long_training(STEPS, seed=2))  # the worker is busy
    waiting = wait_for(lambda: lab.children(other), 4, "the child is there")[0]
    assert waiting["state_type"] != "RUNNING"
    for flow_run in (other, run):
        lab.cancel(flow_run)
    for flow_run in (other, waiting["id"], run, again["id"]):
        assert lab.end(flow_run, 3)["state_name"] == "Cancelled"
    assert lab.steps(waiting) == 0
