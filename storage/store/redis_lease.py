"""Leases: locks with a time limit in a Redis that all hosts share. The holder renews its lease while it works.

A lease that is not renewed in time expires, and another process may take it. So the work of a host that dies is taken
over. The holder counts the time from before each request, so it knows that its lease is over before Redis gives it to
another process. It is then interrupted: SIGUSR1 raises `LeaseLost` in its main thread, whatever that is doing.

Requests to Redis are made by redis-py's own `Lock`. The rest is here because no maintained package does it: redis-py
renews nothing by itself, and the renewal thread of python-redis-lock ends with an exception when the lock is lost, of
which the holder does not learn, so that it would publish. Neither takes a lease again that a restarted Redis has
forgotten, nor holds new leases back until the holder of a forgotten one has had the time to do so.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from types import FrameType
from typing import Any

from storage.store.locks import Check, LeaseLost, Waiting
from storage.store.redis_client import connect, redis_errors_explained

SECONDS_BETWEEN_ATTEMPTS = 1.0
# Shares of a lease's duration. It is renewed after a third. A request that is not answered within a twentieth is
# repeated. In the last sixth the lease counts as lost: a request that is under way then ends before the lease does.
RENEW_AFTER, REQUEST_TIMEOUT, SAFETY_MARGIN = 1 / 3, 1 / 20, 1 / 6


class Leases:
    """Leases in one Redis, under names with a common prefix."""

    def __init__(self, address: str, prefix: str, seconds: float) -> None:
        self._client, self._server = connect(address, seconds * REQUEST_TIMEOUT)
        self._prefix, self._seconds, self._warned = prefix, seconds, False

    @contextlib.contextmanager
    def hold(self, name: str, waiting: Waiting) -> Iterator[Check]:
        """Hold the lease during a block. `waiting` is called once if another process has it.

        Raises `LeaseLost` in the block when the lease is lost.
        """
        lease = Lease(self._client, self._prefix + name, self._seconds, self._server)
        self._acquire(lease, waiting)
        with lease.renewed():
            yield lease.check

    def is_held(self, name: str) -> bool:
        """Return whether a process has the lease."""
        with redis_errors_explained(self._server):
            return bool(self._client.exists(self._prefix + name))

    def _acquire(self, lease: Lease, waiting: Waiting) -> None:
        """Wait for the lease. Raises UserError when Redis has not answered for as long as a lease lasts."""
        from redis.exceptions import RedisError

        with redis_errors_explained(self._server):
            self._client.ping()
        last_answer, reported = _clock(), False
        while True:
            try:
                if not self._has_just_started():
                    if lease.acquire():
                        return
                    if not reported:
                        waiting()
                        reported = True
                last_answer = _clock()
            except RedisError:
                if _clock() - last_answer > self._seconds:
                    with redis_errors_explained(self._server):
                        raise
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)

    def _has_just_started(self) -> bool:
        """Return whether Redis may have forgotten a lease at its start whose holder has not renewed it yet."""
        from redis.exceptions import NoPermissionError

        try:
            uptime = float(self._client.info("server")["uptime_in_seconds"])
        except NoPermissionError:  # a managed Redis may forbid the command
            return False
        if uptime < self._seconds and not self._warned:
            self._warned = True
            logging.getLogger(__name__).warning(
                "Redis at %s has just been started: it gives new leases in %g s, when the holders of leases that it "
                "may have forgotten have renewed them", self._server, self._seconds - uptime,
            )  # fmt: skip
        return uptime < self._seconds


class Lease:
    """One lease, which a thread renews."""

    def __init__(self, client: Any, name: str, seconds: float, server: str) -> None:
        from redis.lock import Lock

        self._name, self._seconds, self._server, self._token = name, seconds, server, uuid.uuid4().hex
        # The thread that renews the lease is not the one that acquired it.
        self._lock = Lock(client, name, timeout=seconds, thread_local=False)
        self._expires, self._lost, self._interrupts = 0.0, "", False
        self._renewing, self._ended = threading.Lock(), threading.Event()

    def acquire(self) -> bool:
        """Take the lease if no process has it, and return whether it was taken."""
        requested = _clock()
        if acquired := bool(self._lock.acquire(blocking=False, token=self._token)):
            self._expires = requested + self._seconds
        return acquired

    @contextlib.contextmanager
    def renewed(self) -> Iterator[None]:
        """Renew the lease in a thread during the block, and release it afterwards."""
        thread = threading.Thread(target=self._renew_repeatedly, name="lease", daemon=True)
        try:
            with self._interrupting():
                thread.start()
                try:
                    yield
                except Exception as error:
                    # A process that was stopped learns here that another has taken over and removed the files it used.
                    self._renew()
                    if self._lost:
                        raise LeaseLost(self._lost) from error
                    raise
                finally:
                    self._ended.set()
                    thread.join()
        finally:
            self._release()
        if self._lost:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Return when the lease has just been renewed. Raises `LeaseLost` when it cannot be."""
        while not self._renew():
            if self._lost:
                raise LeaseLost(self._lost)
            time.sleep(SECONDS_BETWEEN_ATTEMPTS / 10)

    def _renew(self) -> bool:
        """Return whether Redis has renewed the lease. When it is lost, `_lost` has the message."""
        from redis.exceptions import LockNotOwnedError, RedisError

        with self._renewing:
            requested, renewed = _clock(), False
            if not self._lost and requested < self._expires:
                try:
                    self._lock.reacquire()
                    renewed = True
                except LockNotOwnedError:  # another process has it, or Redis has lost its data in the meantime
                    with contextlib.suppress(RedisError):
                        renewed = bool(self._lock.acquire(blocking=False, token=self._token))
                        self._lost = "" if renewed else self._message("another process has it")
                except RedisError:
                    pass
            if renewed:
                self._expires = requested + self._seconds
            elif not self._lost and _clock() >= self._expires - self._seconds * SAFETY_MARGIN:
                self._lost = self._message(f"it could not be renewed for {self._seconds:g} s")
            return renewed

    def _message(self, reason: str) -> str:
        return (
            f"{self._name}: the lease in Redis at {self._server} is lost, {reason}; nothing was published. "
            "Run the same command again to resume"
        )

    def _renew_repeatedly(self) -> None:
        """Renew the lease after each third of its duration, sooner when Redis has not answered; interrupt on a loss."""
        pause = self._seconds * RENEW_AFTER
        while not self._ended.wait(pause):
            pause = self._seconds * (RENEW_AFTER if self._renew() else REQUEST_TIMEOUT / 2)
            if self._lost and self._interrupts:
                # Repeated, since Python drops an exception that is raised while a finaliser runs.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                pause = self._seconds * RENEW_AFTER

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        """Let SIGUSR1 raise `LeaseLost` when the lease is lost. Outside the main thread only `check` raises it."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        before = signal.getsignal(signal.SIGUSR1)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._lost:
                raise LeaseLost(self._lost)
            if callable(before):  # the lost lease is one that was taken before this one
                before(number, frame)

        signal.signal(signal.SIGUSR1, interrupt)
        self._interrupts = True
        try:
            yield
        finally:
            self._ended.set()  # first of all: without a handler the signal would end this process
            signal.signal(signal.SIGUSR1, before or signal.SIG_DFL)

    def _release(self) -> None:
        """Release the lease if this process still has it."""
        from redis.exceptions import LockError, RedisError

        try:
            self._lock.release()
        except LockError:
            if not self._lost:  # otherwise `LeaseLost` says it
                logging.getLogger(__name__).warning("%s: the lease was lost before it was released", self._name)
        except RedisError:
            logging.getLogger(__name__).warning(
                "%s: Redis at %s does not answer; the lease expires by itself in %g s",
                self._name, self._server, self._seconds,
            )  # fmt: skip


def _clock() -> float:
    """Return seconds that count on while the machine sleeps, where the system has such a clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
