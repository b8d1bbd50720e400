"""Downloads over HTTP that resume: after a broken connection, and after the process was killed.

A file grows as NAME.part and gets its name when it is complete and its checksum or size is right. NAME.part.etag has
the server's mark of its version: a server that has another version by now, or that ignores the requested range, sends
the file from its beginning, which then replaces what was there.
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
RETRY_SECONDS = 2.0  # doubled with each failure in a row
MOST_RETRY_SECONDS = 60.0
MOST_REQUESTED_SECONDS = 600.0  # that a server may ask for with Retry-After
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


def download_file(download: Download, file: Path, progress: Progress, otherwise: str, part_name: str = "") -> None:
    """Fetch a file unless it is complete already, as after a kill, or put there by hand.

    Raises UserError where the server cannot be reached or the content is another. It ends with `otherwise`, and says
    how to leave out the part `part_name` of the collection.
    """
    from requests import RequestException

    if file.exists():
        if unexpected := _unexpected(download, file):
            raise UserError(f"{file}: not the expected file ({unexpected}); delete it and run the same command again")
        return
    part = file.with_name(f"{file.name}.part")
    part.parent.mkdir(parents=True, exist_ok=True)
    if download.checksum is None and not _etag_file(part).exists():
        discard(file)  # nothing would show that the rest is of another version
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
                advice = f"{otherwise}{_left_out(part_name, is_unreachable=error.response is None)}"
                raise UserError(f"{download.url}: {_in_words(error)}, or {advice}") from None
            wait = seconds_to_wait(error, failures)
            later = f" in {duration(wait)}" if wait else ""
            say(f"  the connection broke at {in_units(after)} ({type(error).__name__}): resuming{later}")
            time.sleep(wait)
    if unexpected := _unexpected(download, part):
        discard(file)
        advice = f"{otherwise}{_left_out(part_name)}"
        raise UserError(f"{download.url}: not the expected file ({unexpected}); try again later, or {advice}")
    part.replace(file)
    discard(file)


def _left_out(part_name: str, *, is_unreachable: bool = False) -> str:
    """Return the advice to leave out a part, which does not help without a network; empty where there is no part."""
    if not part_name:
        return ""
    if is_unreachable:
        return f"; if only this server is down, --without {part_name} leaves its files out"
    return f", or leave it out with --without {part_name}"


def discard(file: Path) -> None:
    """Delete what an incomplete download of a file left."""
    part = file.with_name(f"{file.name}.part")
    for left in (part, _etag_file(part)):  # in this order: without its ETag a part may be resumed
        left.unlink(missing_ok=True)


def seconds_to_wait(error: Any, failures: int) -> float:
    """Return how long to wait before the next attempt: as the server requests, or longer with each failure in a row."""
    requested = error.response.headers.get("Retry-After", "") if error.response is not None else ""
    if requested.isdigit():
        return min(MOST_REQUESTED_SECONDS, float(requested))
    return min(MOST_RETRY_SECONDS, RETRY_SECONDS * 2**failures) if failures else 0.0


def _receive(download: Download, part: Path, progress: Progress) -> None:
    """Append the rest of a file to what is there; raises RequestException where the connection breaks."""
    from requests import get
    from requests.exceptions import ChunkedEncodingError as Broken

    start = part.stat().st_size if part.exists() else 0
    headers = _headers(download)
    if start:
        headers["Range"] = f"bytes={start}-"
        if _etag_file(part).exists():
            headers["If-Range"] = _etag_file(part).read_text(encoding="utf-8")
    with get(download.url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if answer.status_code == 416 and start == _total(answer.headers.get("Content-Range", "")):
            return
        if answer.status_code == 416:  # another file than the one that was begun
            part.unlink()
            raise Broken("the server has another file now")
        answer.raise_for_status()
        resumed = answer.status_code == 206
        with part.open("ab" if resumed else "wb") as file:
            if not resumed:  # the part is empty now, so that it never has the ETag of another version
                _keep_etag(part, answer.headers.get("ETag", ""))
            for block in answer.iter_content(CHUNK):
                file.write(block)
                progress.add(part.name.removesuffix(".part"), len(block))
            length = answer.headers.get("Content-Length", "")
            if length.isdigit() and file.tell() < int(length) + (start if resumed else 0):
                raise Broken("the connection ended early")


def _etag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.etag")


def _keep_etag(part: Path, etag: str) -> None:
    """Keep the ETag of the version that a part is of. A weak one (`W/...`) does not promise equal bytes."""
    if etag.startswith('"'):
        _etag_file(part).write_text(etag, encoding="utf-8")
    else:
        _etag_file(part).unlink(missing_ok=True)


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
    """Return a file's checksum, or its size where no checksum is known, and the expected one where they differ."""
    if download.checksum is None:
        size = file.stat().st_size
        return None if download.size in (None, size) else f"{size:,} bytes, expected {download.size:,}"
    kind, _, expected = download.checksum.partition(":")
    with file.open("rb") as content:
        actual = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return None if actual == expected else f"{kind} {actual}, expected {expected}"
