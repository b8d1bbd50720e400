"""Leases: locks that hosts hold for a time, in a Redis that all of them know, and renew while they work.

A lease that its holder has not renewed for its time runs out, and another may take it: so a host that dies gives free
what it held. The holder counts from before it asked, so it knows that its lease is over before Redis lets another
have it, and stops: `LeaseLost` in its main thread, by SIGUSR1, wherever that is.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

from storage.errors import UserError
from storage.store.lock import LOCKS, Check, LeaseLost, Waiting

SECONDS_BETWEEN_LOOKS = 1.0
# Shares of a lease's time. It is renewed after a third; what is not answered in a twentieth is asked again; and where
# the last sixth has come, it is given up: a question that is under way then ends before the lease does.
RENEWED, ANSWERED, GIVEN_UP = 1 / 3, 1 / 20, 1 / 6


class Leases:
    """Leases of one Redis, under names that begin alike."""

    def __init__(self, address: str, beginning: str, seconds: float) -> None:
        self._client, self._place = _client(address, seconds * ANSWERED)
        self._beginning, self._seconds, self._warned = beginning, seconds, False

    @contextlib.contextmanager
    def hold(self, name: str, waiting: Waiting) -> Iterator[Check]:
        """Hold the lease for a block; `waiting` is called once if another has it. Raises `LeaseLost` in the block."""
        lease = Lease(self._client, self._beginning + name, self._seconds, self._place)
        self._take(lease, waiting)
        with lease.kept():
            yield lease.check

    def is_held(self, name: str) -> bool:
        """Whether a process has the lease."""
        with _in_words(self._place):
            return bool(self._client.exists(self._beginning + name))

    def _take(self, lease: Lease, waiting: Waiting) -> None:
        """Wait until the lease is ours. A Redis that does not answer is waited for as long as a lease lasts."""
        from redis.exceptions import RedisError

        with _in_words(self._place):
            self._client.ping()
        answered, told = _clock(), False
        while True:
            try:
                if not self._has_just_started():
                    if lease.take():
                        return
                    if not told:
                        waiting()
                        told = True
                answered = _clock()
            except RedisError:
                if _clock() - answered > self._seconds:
                    with _in_words(self._place):
                        raise
            time.sleep(SECONDS_BETWEEN_LOOKS)

    def _has_just_started(self) -> bool:
        """Whether Redis may have forgotten a lease that it gave before it was started; its holder renews it first."""
        from redis.exceptions import NoPermissionError

        try:
            since = float(self._client.info("server")["uptime_in_seconds"])
        except NoPermissionError:  # a Redis that others look after
            return False
        if since < self._seconds and not self._warned:
            self._warned = True
            logging.getLogger(__name__).warning(
                "Redis at %s has just been started: leases are given when any that it forgot has been renewed, in %g s",
                self._place, self._seconds - since,
            )  # fmt: skip
        return since < self._seconds


class Lease:
    """One lease, which a thread renews."""

    def __init__(self, client: Any, name: str, seconds: float, place: str) -> None:
        from redis.lock import Lock

        self._name, self._seconds, self._place, self._token = name, seconds, place, uuid.uuid4().hex
        # The thread that renews it is not the one that took it.
        self._lock = Lock(client, name, timeout=seconds, thread_local=False)
        self._until, self._lost, self._interrupts = 0.0, "", False
        self._alone, self._left = threading.Lock(), threading.Event()

    def take(self) -> bool:
        """Take the lease if nobody has it."""
        asked = _clock()
        if taken := bool(self._lock.acquire(blocking=False, token=self._token)):
            self._until = asked + self._seconds
        return taken

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease during the block, and give it back at its end."""
        keeper = threading.Thread(target=self._keep, name="lease", daemon=True)
        try:
            with self._interrupting():
                keeper.start()
                try:
                    yield
                finally:
                    self._left.set()
                    keeper.join()
        finally:
            self._give_back()
        if self._lost:
            raise LeaseLost(self._lost)

    def check(self) -> None:
        """Return with a lease that was renewed just now; raise `LeaseLost` where that cannot be."""
        while not self._renewed():
            if self._lost:
                raise LeaseLost(self._lost)
            time.sleep(SECONDS_BETWEEN_LOOKS / 10)

    def _renewed(self) -> bool:
        """Whether Redis has renewed the lease; where it is lost, `_lost` says why."""
        from redis.exceptions import LockNotOwnedError, RedisError

        with self._alone:
            asked, renewed = _clock(), False
            if not self._lost and asked < self._until:
                try:
                    self._lock.reacquire()
                    renewed = True
                except LockNotOwnedError:  # another has it, or Redis has been emptied while we held it
                    with contextlib.suppress(RedisError):
                        renewed = bool(self._lock.acquire(blocking=False, token=self._token))
                        self._lost = "" if renewed else self._what_happened("another process has it")
                except RedisError:
                    pass
            if renewed:
                self._until = asked + self._seconds
            elif not self._lost and _clock() >= self._until - self._seconds * GIVEN_UP:
                self._lost = self._what_happened(f"it could not be renewed for {self._seconds:g} s")
            return renewed

    def _what_happened(self, reason: str) -> str:
        return (
            f"{self._name}: the lease in Redis at {self._place} is lost, {reason}; nothing was published. "
            "Run again to go on where this run stopped"
        )

    def _keep(self) -> None:
        """Renew the lease every third of its time, sooner where Redis has not answered; interrupt where it is lost."""
        pause = self._seconds * RENEWED
        while not self._left.wait(pause):
            pause = self._seconds * (RENEWED if self._renewed() else ANSWERED / 2)
            if self._lost and self._interrupts:
                # And again after a while: an exception that comes while a finaliser runs is not seen.
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                pause = self._seconds * RENEWED

    @contextlib.contextmanager
    def _interrupting(self) -> Iterator[None]:
        """SIGUSR1 raises `LeaseLost` where the lease is lost. In other threads than the main one `check` alone does."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def interrupt(*_: object) -> None:
            if self._lost:
                raise LeaseLost(self._lost)

        before = signal.signal(signal.SIGUSR1, interrupt)
        self._interrupts = True
        try:
            yield
        finally:
            self._left.set()  # before all else: without a handler the signal would end us
            signal.signal(signal.SIGUSR1, before or signal.SIG_DFL)

    def _give_back(self) -> None:
        """Let others have it, if it is ours."""
        from redis.exceptions import LockError, RedisError

        try:
            self._lock.release()
        except LockError:
            logging.getLogger(__name__).warning("%s: the lease was lost before it was given back", self._name)
        except RedisError:
            logging.getLogger(__name__).warning(
                "%s: Redis at %s does not answer; the lease ends by itself in %g s",
                self._name, self._place, self._seconds,
            )  # fmt: skip


def require_answer(address: str, seconds: float) -> None:
    """Raise `UserError` where no Redis answers at an address, or refuses us; `seconds` is how long its leases last."""
    client, place = _client(address, seconds * ANSWERED)
    with _in_words(place), client:
        client.ping()


@contextlib.contextmanager
def _in_words(place: str) -> Iterator[None]:
    """Say what is wrong with the address, and not what the password is."""
    from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError, RedisError

    try:
        yield
    except (AuthenticationError, AuthorizationError, NoPermissionError):
        raise UserError(f"{LOCKS}: Redis at {place} refuses the user or the password") from None
    except RedisError as error:
        raise UserError(
            f"{LOCKS}: no answer from Redis at {place} ({type(error).__name__}); is it started, and is the address "
            "right?"
        ) from None


def _client(address: str, seconds: float) -> tuple[Any, str]:
    """A client of a Redis that waits so long for an answer, and where it is, for people; it connects when asked."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    wrong = UserError(f"{LOCKS}: expected redis://:PASSWORD@HOST:PORT/DB, or rediss:// for TLS, found something else")
    if not address.startswith(("redis://", "rediss://")):
        raise wrong
    try:
        client = Redis.from_url(
            address, socket_timeout=seconds, socket_connect_timeout=seconds, retry=Retry(NoBackoff(), 0)
        )  # fmt: skip
    except (ValueError, TypeError):
        raise wrong from None  # whose message may show a part of the password
    known = client.connection_pool.connection_kwargs
    return client, f"{known.get('host', 'localhost')}:{known.get('port', 6379)}"


def _clock() -> float:
    """Seconds that go on while the machine sleeps, where the system counts them."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
