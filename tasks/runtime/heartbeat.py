"""Hosts that train one model together: how they meet, and how each sees that the others live.

All share the store. In the folder of a job each host has a slot, a file `host-N` that it changes every few seconds:
slot 0 is of the host that runs the stage, the others are of those that come first. A file that does not change any
more is of a host that is lost; a host that leaves in order removes its own.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import time
from pathlib import Path

from storage.errors import UserError
from tasks.session import Execution

SECONDS_BETWEEN_BEATS = 3.0  # seconds between two changes
SECONDS_UNTIL_LOST = 60.0  # seconds without one
SECONDS_UNTIL_ALL_JOINED = 1800.0  # seconds in which the others must have come
STARTED = "begun"


class HostLost(Exception):
    """A host of several no longer lives."""


def rendezvous_address(wanted: Execution) -> tuple[str, int]:
    """Return the host and the port where the hosts meet. Raises `UserError` where `execution.rendezvous` is neither."""
    address = wanted.rendezvous
    if not address or not (match := re.fullmatch(r"\[?([^\s\[\]/]+)\]?:(\d{1,5})", address)) or int(match[2]) > 65535:
        raise UserError(f"{_expected(wanted)} (execution.hosts), found {address or 'none'}")
    return match[1], int(match[2])


def listen(wanted: Execution) -> socket.socket:
    """Listen where the hosts meet, on that address only. Raises `UserError` where this host cannot.

    A name that this host takes for loopback, as Debian's installer writes its own name into /etc/hosts, would be
    another machine's own loopback there.
    """
    host, port = rendezvous_address(wanted)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UserError(f"{_expected(wanted)}; {host} has no address here ({error.strerror})") from None
    if ipaddress.ip_address(address[0]).is_loopback and host != "localhost" and not _is_address(host):
        raise UserError(
            f"{_expected(wanted)}; {host} is {address[0]} here, which no other host reaches: give an address"
        )
    listening = socket.socket(family)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(socket.SOMAXCONN)
    except OSError as error:
        listening.close()
        raise UserError(f"{_expected(wanted)}; port {port} cannot be used there ({error.strerror})") from None
    return listening


def exposure_warning(wanted: Execution) -> str:
    """Return the warning at the start of a training of several hosts: what listens where, and who must not reach it."""
    return (
        f"warning: these hosts train without passwords or encryption (execution.trusted_network): host 1 listens at "
        f"{wanted.rendezvous}, each process at a port of the interface of its host; all who reach these ports can "
        "read and change the training"
    )


def _expected(wanted: Execution) -> str:
    return f"execution.rendezvous: expected HOST:PORT of this host, where {wanted.hosts} hosts meet"


def _is_address(host: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False


class HostSlot:
    """A host's own slot in a job."""

    def __init__(self, folder: Path, number: int) -> None:
        """Take the slot. Raises `FileExistsError` where another has it."""
        self.number, self._path, self._count = number, folder / f"host-{number}", 0
        with self._path.open("x", encoding="utf-8") as file:
            file.write(self._content())

    def beat(self) -> None:
        """Report that this host lives. Raises `FileNotFoundError` when the job is over.

        Written in place: what it says means nothing, only that it is something else.
        """
        self._count += 1
        descriptor = os.open(self._path, os.O_WRONLY)  # a file that is gone must not come back
        try:
            os.pwrite(descriptor, self._content().encode(), 0)
        finally:
            os.close(descriptor)

    def leave(self) -> None:
        """Release the slot."""
        self._path.unlink(missing_ok=True)

    def _content(self) -> str:
        return f"{socket.gethostname()} {os.getpid()} {self._count}\n"


def claim_free_slot(folder: Path, hosts: int) -> HostSlot | None:
    """Return a free slot in a job of `hosts` hosts, or None if all are taken or the job is over."""
    for number in range(1, hosts):
        with contextlib.suppress(FileExistsError, FileNotFoundError):
            return HostSlot(folder, number)
    return None


class RemoteHost:
    """Another host's slot, as this host sees it."""

    def __init__(self, folder: Path, number: int) -> None:
        self._path, self._since = folder / f"host-{number}", time.monotonic()
        self._content = self._read()
        self.host = self._content.partition(" ")[0]
        self.is_alive = False

    def refresh(self) -> None:
        """Read the slot, and note whether its content has changed."""
        if (content := self._read()) != self._content:
            self.is_alive, self._content, self._since = bool(content and self._content), content, time.monotonic()
            self.host = content.partition(" ")[0] or self.host

    @property
    def is_taken(self) -> bool:
        """Return whether a host has this number."""
        return bool(self._content)

    @property
    def has_stopped(self) -> bool:
        """Return whether the host's heartbeat has stopped."""
        return time.monotonic() - self._since > SECONDS_UNTIL_LOST

    def _read(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""


class HostMonitor:
    """All hosts of a job, as the one sees them that runs the stage."""

    def __init__(self, folder: Path, wanted: Execution) -> None:
        self._folder, self._wanted, self._since = folder, wanted, time.monotonic()
        self._own = HostSlot(folder, 0)
        self._others = [RemoteHost(folder, number) for number in range(1, wanted.hosts)]

    def beat(self) -> None:
        """Report that this host lives."""
        self._own.beat()

    def look(self) -> None:
        """Report that this host lives, and check the others.

        Raises `HostLost`, or `UserError` where some have not joined.
        """
        self.beat()
        begun = (self._folder / STARTED).exists()
        self._raise_if_lost(begun)
        if not begun and time.monotonic() - self._since > SECONDS_UNTIL_ALL_JOINED:
            joined = 1 + sum(other.is_taken for other in self._others)
            raise UserError(
                f"execution.hosts: {self._wanted.hosts} hosts should meet at {self._wanted.rendezvous}, {joined} came "
                f"in {SECONDS_UNTIL_ALL_JOINED / 60:.0f} minutes; run `pretrieve join` on the others and start again, "
                "or wait for fewer"
            )

    def wait_until_others_leave(self) -> None:
        """Wait, after a failure, until every other host has left; raise if one is lost."""
        while any(other.is_taken for other in self._others):
            self.beat()
            self._raise_if_lost(False)
            time.sleep(SECONDS_BETWEEN_BEATS / 3)

    def _raise_if_lost(self, begun: bool) -> None:
        for other in self._others:
            other.refresh()
            if other.has_stopped and (other.is_taken or begun):
                raise HostLost(
                    f"host {other.host} was lost: it has not been heard of in the store for "
                    f"{SECONDS_UNTIL_LOST:.0f} s; run again to resume from the last checkpoint"
                )
