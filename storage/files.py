"""Whole files or none: hashing, atomic writing, and telling a full disk in plain words."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import UserError

LIMITS = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the disk is full (your quota is used up); make room",
    errno.EFBIG: "a file would be larger than it may be (ulimit -f, or the file system); raise the limit",
    errno.EMFILE: "more files are open than may be (ulimit -n); raise the limit",
    errno.ENFILE: "more files are open on this machine than may be (fs.file-max); raise the limit",
}

_hashes: dict[tuple[str, int, int, int, int], str] = {}


def sha256_of(path: Path) -> str:
    """The sha256 of a file, read once while its size, inode and times of change stay the same in this process."""
    status = path.stat()
    seen = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if seen not in _hashes:
        with path.open("rb") as file:
            _hashes[seen] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[seen]


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`; at the end of the block it is flushed to disk and takes the name.

    After a crash either the whole file or no file has the name. A full disk is a `UserError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several hosts or containers may have the same number.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with full_disk_in_words(path):
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_files(folder: Path) -> Iterator[Path]:
    """A temporary folder in `folder` for a library that writes files; at the end of the block each takes its name.

    The files are flushed to disk and moved to the same relative paths in `folder`, so that after a crash a file with
    its name is complete; those of the same names are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".files.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        with full_disk_in_words(folder):
            yield temporary
            for path in sorted(path for path in temporary.rglob("*") if path.is_file()):
                flush(path)
                target = folder / path.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def drop_unfinished(folder: Path) -> None:
    """Delete what processes that were killed have left in a folder: all names that begin with a dot.

    Ours are `.NAME.PROCESS.tmp` (`writing`, `writing_files`), those of safetensors `.tmp` and six letters.
    """
    for path in sorted(folder.rglob(".*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def follow_umask(files: Iterable[Path], folder: Path) -> None:
    """Give files in a folder the mode of a new file: some libraries give theirs to this user only."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mode.", suffix=".tmp") as new:
        (probe := Path(new) / "probe").touch()
        mode = probe.stat().st_mode
    for path in files:
        if path.stat().st_mode != mode:
            with contextlib.suppress(PermissionError):  # another user wrote it, in an attempt that was cut off
                path.chmod(stat.S_IMODE(mode))


@contextlib.contextmanager
def writing_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, which is not there or empty; at the end of the block it takes the name.

    After a crash either the whole folder or none has the name; the next attempt clears what was unfinished.
    """
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.unfinished")
    temporary.mkdir(parents=True, exist_ok=True)
    with _alone_in(temporary, folder), full_disk_in_words(folder):
        try:
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                flush(path)
            os.rename(temporary, folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _alone_in(temporary: Path, folder: Path) -> Iterator[None]:
    """Have a folder to oneself, and cleared. Raises UserError where another process has it."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            mine = os.path.samestat(os.fstat(descriptor), temporary.stat())  # it may just have got its name
        except (BlockingIOError, FileNotFoundError):
            mine = False
        if not mine:
            raise UserError(f"{folder}: another process is writing it; wait for its end, or name another folder")
        for left in temporary.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a small file whole or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Have the kernel write a file or a folder's entries to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def full_disk_in_words(path: Path) -> Iterator[None]:
    """Turn a full disk or another limit of the system into a line that names the place; the work so far stays."""
    try:
        yield
    except Exception as error:
        if reached := limit_reached(error):
            raise UserError(f"{path}: {reached}") from error
        raise


def limit_reached(error: BaseException) -> str | None:
    """Which limit of the system an error comes from, and what to do; None where it comes from none.

    Libraries wrap the system's error in their own, so its message is looked for too.
    """
    number = error.errno if isinstance(error, OSError) else None
    for limit, words in LIMITS.items():
        if number == limit or os.strerror(limit) in str(error):
            return f"{words} and run the same command again"
    return None
