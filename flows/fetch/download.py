"""Downloads over HTTP that resume: after a broken connection, and after the process was killed.

A file grows as NAME.part and gets its name when it is complete and its checksum is right. A server that ignores the
requested range sends the file from its beginning, which then replaces what was there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.terminal import say
from storage.errors import UserError
from storage.files import full_disk_explained
from tasks.runtime.formatting import duration, in_units

CHUNK = 1 << 16  # bytes; what is received of a block is lost where the connection breaks within it
TIMEOUT = (15, 60)  # seconds to connect, and between two blocks of data
RETRIES = 8  # in a row without any progress
BUSY = (408, 429)  # HTTP: request timeout, too many requests
RETRY_SECONDS = 2.0
REPORT_SECONDS = 15.0


@dataclass(frozen=True)
class Download:
    """The source of a file to download, and the checks that it is the expected one."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    checksum: str | None = None
    """`md5:` or `sha256:` and the hexadecimal digest; None where the publisher gives none."""
    size: int | None = None
    """In bytes; None where it is not known before."""


class Progress:
    """Prints every `REPORT_SECONDS` how much of all files has arrived, how fast, and how long the rest takes."""

    def __init__(self, total: int | None) -> None:
        self.total, self.complete, self.received = total, 0, 0
        self.began = self.printed = time.monotonic()

    def add(self, name: str, received: int) -> None:
        """Count received bytes of a file."""
        self.received += received
        if (now := time.monotonic()) - self.printed >= REPORT_SECONDS:
            self.printed = now
            say(f"  {name}: {self.line(now)}")

    def line(self, now: float) -> str:
        """Return the amount, the rate since the beginning, and the remaining time where the total is known."""
        rate, amount = self.received / max(now - self.began, 1e-9), self.complete + self.received
        if not self.total or amount > self.total or not rate:
            return f"{in_units(amount)}, {in_units(rate)}/s"
        remaining = duration((self.total - amount) / rate)
        size = f"{in_units(amount)} of {in_units(self.total)} ({amount / self.total:.0%})"
        return f"{size}, {in_units(rate)}/s, {remaining} left"


def size_of(download: Download) -> int | None:
    """Return a file's size, if need be as the server states it; None where it states none."""
    from requests import RequestException, head

    if download.size is not None:
        return download.size
    try:
        answer = head(download.url, headers=_headers(download), allow_redirects=True, timeout=TIMEOUT)
    except RequestException:
        return None  # the download itself will say what is wrong
    length = answer.headers.get("Content-Length", "")
    return int(length) if answer.ok and length.isdigit() else None


def download_file(download: Download, file: Path, progress: Progress, otherwise: str) -> None:
    """Fetch a file unless it is complete already, as after a kill, or put there by hand.

    Raises UserError, which ends with `otherwise`, where the server cannot be reached or the content is another.
    """
    from requests import RequestException

    if file.exists():
        if unexpected := _unexpected(download, file):
            raise UserError(f"{file}: not the expected file ({unexpected}); delete it and run the same command again")
        return
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    progress.complete += part.stat().st_size if part.exists() else 0
    failures = 0
    while True:
        before = part.stat().st_size if part.exists() else 0
        try:
            with full_disk_explained(file):
                _receive(download, part, progress)
            break
        except RequestException as error:
            after = part.stat().st_size if part.exists() else 0
            failures = 0 if after > before else failures + 1
            if _is_final(error, after) or failures > RETRIES:
                raise UserError(f"{download.url}: {_in_words(error)}, or {otherwise}") from None
            say(f"  the connection broke at {in_units(after)} ({type(error).__name__}): resuming")
            time.sleep(RETRY_SECONDS * min(failures, 1))
    if unexpected := _unexpected(download, part):
        part.unlink()
        raise UserError(f"{download.url}: not the expected file ({unexpected}); try again later, or {otherwise}")
    part.replace(file)


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Append the rest of a file to what is there; raises RequestException where the connection breaks."""
    from requests import get
    from requests.exceptions import ChunkedEncodingError as Broken

    start = part.stat().st_size if part.exists() else 0
    headers = _headers(download) | ({"Range": f"bytes={start}-"} if start else {})
    with get(download.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if answer.status_code == 416 and start == _total(answer.headers.get("Content-Range", "")):
            return
        if answer.status_code == 416:  # another file than the one that was begun
            part.unlink()
            raise Broken("the server has another file now")
        answer.raise_for_status()
        resumed = answer.status_code == 206
        with part.open("ab" if resumed else "wb") as file:
            for block in answer.iter_content(CHUNK):
                file.write(block)
                progress.add(part.name.removesuffix(".part"), len(block))
            length = answer.headers.get("Content-Length", "")
            if length.isdigit() and file.tell() < int(length) + (start if resumed else 0):
                raise Broken("the connection ended early")


def _headers(download: Download) -> dict[str, str]:
    """Return the headers of a request. The file itself is wanted, not a compressed transfer of it."""
    return {"User-Agent": "pretrieve", "Accept-Encoding": "identity", **download.headers}


def _total(content_range: str) -> int | None:
    """Return the size in a header such as `bytes */1234`."""
    size = content_range.rpartition("/")[2]
    return int(size) if size.isdigit() else None


def _is_final(error: Any, received: int) -> bool:
    """Return whether another attempt is useless: the server refuses, or cannot be reached from the beginning."""
    from requests import ConnectionError as Unreachable

    if error.response is not None:
        return error.response.status_code < 500 and error.response.status_code not in BUSY
    return received == 0 and isinstance(error, Unreachable)


def _in_words(error: Any) -> str:
    if error.response is not None:
        return f"the server answers HTTP {error.response.status_code}; try again later"
    return f"cannot be reached ({type(error).__name__}); get a network"


def _unexpected(download: Download, file: Path) -> str | None:
    """Return a file's checksum and the expected one where they differ, for a message."""
    if download.checksum is None:
        return None
    kind, _, expected = download.checksum.partition(":")
    with file.open("rb") as content:
        actual = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return None if actual == expected else f"{kind} {actual}, expected {expected}"
