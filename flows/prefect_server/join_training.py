"""`pretrieve join`: give this host to trainings of several hosts, one after the other, as they come in a shared store.

A training says in its job's file that it wants several hosts. One that is under way is known by its first host's
place, which changes; what a host that died has left does not.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path

from flows.terminal import unwrapped
from storage.errors import UserError
from storage.store.store import Store
from tasks.runtime import ranks
from tasks.runtime.heartbeat import BEAT, Place, Pulse, exposure, free_place
from tasks.runtime.rank_processes import Processes
from tasks.runtime.signals import unwinding
from tasks.session import Execution, Session, session

console = unwrapped(stderr=True)


def join(folder: Path) -> None:
    """Take part in every training of several hosts that comes, until Ctrl-C or SIGTERM."""
    store, pulses, over = Store.open_or_new(folder), dict[Path, Pulse](), set[Path]()
    if not store.root.is_dir():
        raise UserError(f"--store {store.root}: expected the store that the hosts share, found no folder")
    store.mark()
    console.print(f"waiting for trainings of several hosts in {store.root}; Ctrl-C ends this")
    with unwinding():
        while True:
            for job, wanted in _jobs(store):
                pulse = pulses.setdefault(job, Pulse(job, 0))
                pulse.look()
                if pulse.beats and job not in over and (place := free_place(job, wanted.hosts)):
                    over.add(job)
                    take_part(job, wanted, store, place)
            time.sleep(BEAT)


def _jobs(store: Store) -> Iterator[tuple[Path, Execution]]:
    """The folders of jobs of several hosts, with how they run."""
    for path in (store.root / ".work").glob(f"*/scratch/ranks-*/{ranks.JOB}"):
        with contextlib.suppress(FileNotFoundError):  # it is just over
            wanted = Execution.model_validate(json.loads(path.read_text())["execution"])
            if wanted.hosts > 1:
                yield path.parent, wanted


def take_part(job: Path, wanted: Execution, store: Store, place: Place) -> None:
    """Run this host's processes of a job until it is over, whatever ends it."""
    name = job.parent.parent.name
    console.print(f"{name}: this is host {place.number + 1} of {wanted.hosts}; processes: {wanted.processes}")
    try:
        with session(Session(store, wanted)):
            ranks.check_devices(wanted.processes)
            console.print(f"{name}: {exposure(wanted)}")
            console.print(f"{name}: {_ended(Processes(job, store, place.number), place, Pulse(job, 0))}")
    except UserError as error:
        console.print(f"{name}: this host cannot take part: {error}")
    finally:
        place.leave()


def _ended(processes: Processes, place: Place, first: Pulse) -> str:
    """Wait until the processes have ended; how they did. Where the job is over or its first host is lost, end them."""
    try:
        while (completed := processes.wait(BEAT)) is None:
            place.beat()
            first.look()
            if first.has_stopped:
                processes.kill()
                return f"host {first.host}, which runs the stage, was lost"
        return "over" if completed else "ended; the host that runs the stage says why"
    except FileNotFoundError:
        processes.kill()
        return "over"
    finally:
        processes.end()
