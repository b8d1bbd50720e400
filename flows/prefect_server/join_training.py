"""`pretrieve join`: take part in trainings over several hosts, one after the other, as they appear in a shared store.

A training's job file says how many hosts it needs. A training is active while its first host sends heartbeats; the
files of a host that died do not change any more.
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
from tasks.runtime.heartbeat import SECONDS_BETWEEN_BEATS, HostSlot, RemoteHost, claim_free_slot, exposure_warning
from tasks.runtime.rank_processes import Processes
from tasks.runtime.signals import unwind_on_sigterm
from tasks.session import Execution, Session, session

console = unwrapped(stderr=True)


def join(folder: Path) -> None:
    """Take part in every training over several hosts that begins, until Ctrl-C or SIGTERM."""
    store, pulses, finished = Store.open_or_new(folder), dict[Path, RemoteHost](), set[Path]()
    if not store.root.is_dir():
        raise UserError(f"--store {store.root}: expected the store that the hosts share, but there is no such folder")
    store.mark()
    console.print(f"waiting for trainings of several hosts in {store.root}; Ctrl-C ends this")
    with unwind_on_sigterm():
        while True:
            for job, execution in _jobs(store):
                pulse = pulses.setdefault(job, RemoteHost(job, 0))
                pulse.refresh()
                if pulse.is_alive and job not in finished and (slot := claim_free_slot(job, execution.hosts)):
                    finished.add(job)
                    take_part(job, execution, store, slot)
            time.sleep(SECONDS_BETWEEN_BEATS)


def _jobs(store: Store) -> Iterator[tuple[Path, Execution]]:
    """Yield the folders of jobs over several hosts, with their execution settings."""
    for path in (store.root / ".work").glob(f"*/scratch/ranks-*/{ranks.JOB}"):
        with contextlib.suppress(FileNotFoundError):  # the job has just ended
            execution = Execution.model_validate(json.loads(path.read_text(encoding="utf-8"))["execution"])
            if execution.hosts > 1:
                yield path.parent, execution


def take_part(job: Path, execution: Execution, store: Store, slot: HostSlot) -> None:
    """Run this host's processes of a job until the job ends, for whatever reason."""
    from tasks.runtime.device import devices_for  # imports torch

    name = job.parent.parent.name
    console.print(f"{name}: this is host {slot.number + 1} of {execution.hosts}; processes: {execution.processes}")
    try:
        with session(Session(store, execution)):
            devices_for(execution.processes)
            console.print(f"{name}: {exposure_warning(execution)}")
            console.print(f"{name}: {_ended(Processes(job, store, slot.number, slot.beat), slot, RemoteHost(job, 0))}")
    except UserError as error:
        console.print(f"{name}: this host cannot take part: {error}")
    finally:
        slot.leave()


def _ended(processes: Processes, slot: HostSlot, first: RemoteHost) -> str:
    """Wait until the processes end, and return how. Where the job ends or its first host is lost, end them."""
    try:
        while (completed := processes.wait(SECONDS_BETWEEN_BEATS)) is None:
            slot.beat()
            first.refresh()
            if first.has_stopped:
                processes.kill()
                return f"host {first.host}, which runs the stage, was lost"
        return "over" if completed else "ended; the host that runs the stage says why"
    except FileNotFoundError:
        processes.kill()
        return "over"
    finally:
        processes.end()
