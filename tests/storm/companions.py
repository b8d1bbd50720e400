"""Commands that read and tidy the store while runs build in it."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from tests.storm.runs import command

if TYPE_CHECKING:
    from tests.storm.chains import ChainRuns

EVERY = 4.0
"""Seconds between two commands."""
DELETES = ("gc", "--delete", "--older-than", "0s")
COMMANDS = {
    "verify": (("verify",), 3), "export": (("export",), 3), "gc": (("gc",), 1), "gc --delete": (DELETES, 3),
    "gc --unfinished": ((*DELETES, "--unfinished"), 1),
}  # fmt: skip
"""By name the arguments, and how often it is drawn."""
ALLOWED = {"export": (0, 2)}
"""Exit codes where they are not 0 only; `export` says 2 where the checkpoint is not there yet."""


def keep_calling(chain: ChainRuns, done: threading.Event) -> None:
    """Call one after the other until the chain is complete."""
    drawn = random.Random(chain.chain.number)
    number = 0
    while not done.wait(EVERY) and not chain.weather.stopped.is_set():
        number += 1
        name = drawn.choices(list(COMMANDS), [often for _, often in COMMANDS.values()])[0]
        code, words = call(chain, name, number)
        if code not in ALLOWED.get(name, (0,)):
            chain.problem(f"{name} during a run: exit code {code}: {words}")
        chain.outcome.commands[f"{name}, exit code {code}"] += 1


def call(chain: ChainRuns, name: str, number: int = 0) -> tuple[int | None, str]:
    """The exit code of a command, and the end of what it printed as errors."""
    arguments = list(COMMANDS[name][0])
    if name == "export":
        checkpoints = [
            artifact for artifact in chain.reference.artifacts if artifact.startswith(("train/", "pretrain/"))
        ]
        checkpoint = random.Random(number).choice(sorted(checkpoints))
        arguments += [checkpoint.partition("/")[2], f"exported-{number}"]
    run = command(chain.folder, name, *arguments, environment=chain.environment, plain=True)
    chain.all.append(run)
    code = run.wait()
    chain.ended.append(run)
    return code, " | ".join(run.text.splitlines()[-3:])
