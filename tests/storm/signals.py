"""How a run is interrupted, and what is expected of it then."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.storm.outcome import Hit
from tests.storm.runs import HANGS, Run, end_of

if TYPE_CHECKING:
    from tests.storm.chains import ChainRuns

PROMPT = 10.0
"""Seconds within which a process ends after SIGTERM or SIGINT."""
NUMBERS = {"TERM": signal.SIGTERM, "INT": signal.SIGINT}
CODES = {"TERM": (143, -15), "INT": (130,)}


def kill(chain: ChainRuns, run: Run, hit: Hit) -> None:
    """SIGKILL."""
    sent = time.monotonic()
    run.signal(signal.SIGKILL, group=hit.aim.group)
    chain.wait_for_end(run, hit, sent, (-signal.SIGKILL,))


def stop_and_kill(chain: ChainRuns, run: Run, hit: Hit) -> None:
    """SIGSTOP, and SIGKILL after a pause."""
    run.signal(signal.SIGSTOP, group=hit.aim.group)
    time.sleep(hit.aim.pause)
    kill(chain, run, hit)


def stop_and_continue(chain: ChainRuns, run: Run, hit: Hit) -> Run:
    """SIGSTOP, and SIGCONT after a pause: the run continues."""
    run.signal(signal.SIGSTOP, group=hit.aim.group)
    time.sleep(hit.aim.pause)
    run.signal(signal.SIGCONT, group=hit.aim.group)
    return run


def ask_to_end(chain: ChainRuns, run: Run, hit: Hit) -> None:
    """SIGTERM or SIGINT: one line, the right exit code, soon."""
    sent = time.monotonic()
    run.signal(NUMBERS[hit.aim.kind], group=hit.aim.group)
    if chain.wait_for_end(run, hit, sent, CODES[hit.aim.kind]) == 0:  # the signal came at its end
        if hit.seconds > PROMPT:
            chain.problem(f"{hit.what}: the run continued for {hit.seconds:.1f} s: {end_of(run)}")
        return
    if hit.seconds > PROMPT:
        chain.problem(f"{hit.what}: ended after {hit.seconds:.1f} s")
    lines = [line for line in run.text.splitlines() if line.startswith("pretrieve: ")]
    if len(lines) != 1 or "Traceback" in run.text:
        chain.problem(f"{hit.what}: expected one line, found {end_of(run)}")


def take_over(chain: ChainRuns, run: Run, hit: Hit) -> Run:
    """A second run meets a stopped builder: it waits, or with leases builds in its place. The second continues."""
    run.signal(signal.SIGSTOP, group=hit.aim.group)
    second = chain.start(run.recipe)
    if not hit.reference or not _meet(chain, run, second, hit):
        _release(chain, run, hit)
        return second
    sent = time.monotonic()
    run.signal(signal.SIGCONT, group=hit.aim.group)
    chain.wait_for_end(run, hit, sent, (1,))
    lines = [line for line in run.text.splitlines() if line.startswith("pretrieve: ")]
    if len(lines) != 1 or "lease" not in lines[0] or "Traceback" in run.text:
        chain.problem(f"{hit.what}: expected one line, that the lease is lost, found {end_of(run)}")
    return second


def _meet(chain: ChainRuns, run: Run, second: Run, hit: Hit) -> bool:
    """Wait until the second run waits for the first or has built in its place; whether it has built."""
    short, leases = hit.short, chain.chain.mode.name == "leases"
    enough = ("built in", "cached") if leases else ("waiting", "built in", "cached")
    deadline = time.monotonic() + HANGS
    while second.poll() is None and (state := second.states().get(short)) not in enough:
        chain.look()
        if time.monotonic() > deadline:
            chain.problem(f"{hit.what}: the second run did not meet the first: {end_of(second)}")
            return False
        time.sleep(0.01)
    held = f"{short}: another run builds it; waiting" in second.text  # else it was stopped before it had the lease
    return leases and held and state == "built in" and run.states().get(short) == "…"


def _release(chain: ChainRuns, run: Run, hit: Hit) -> None:
    """The stopped builder is killed, or continues and completes its chain."""
    if hit.aim.inherits:
        kill(chain, run, hit)
    else:
        run.signal(signal.SIGCONT, group=hit.aim.group)
        chain.others.append(run)


SENT: dict[str, Callable[[ChainRuns, Run, Hit], Run | None]] = {
    "KILL": kill, "TERM": ask_to_end, "INT": ask_to_end, "STOP+CONT": stop_and_continue, "STOP+KILL": stop_and_kill,
    "takeover": take_over,
}  # fmt: skip
