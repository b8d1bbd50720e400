"""Hash files, write them atomically, and explain a full disk and other limits of the system."""

from __future__ import annotations

import contextlib
import ctypes
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

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of renameat2 in Linux
SYSTEM_FILES = (".DS_Store", "Thumbs.db", "desktop.ini")
SYSTEM_PREFIXES = ("._", ".nfs", ".fuse_hidden")

_hashes: dict[tuple[str, int, int, int, int], str] = {}


def cache_folder() -> Path:
    """Return the folder of caches outside of stores: PRETRIEVE_CACHE, or pretrieve in $XDG_CACHE_HOME or ~/.cache."""
    if own := os.environ.get("PRETRIEVE_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pretrieve"


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file, read again in this process only if its size, inode or times have changed."""
    status = path.stat()
    identity = (str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    if identity not in _hashes:
        with path.open("rb") as file:
            _hashes[identity] = hashlib.file_digest(file, "sha256").hexdigest()
    return _hashes[identity]


def bytes_below(folder: Path) -> int:
    """Return the total size of a folder's files. Files and folders that disappear meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(parent) / name).stat().st_size
    return total


def is_system_file(name: str) -> bool:
    """Return whether an operating system or a file system puts files of this name into folders by itself.

    They are those of macOS, Windows, and of NFS and FUSE, which rename a deleted file that is still open.
    """
    return name in SYSTEM_FILES or name.startswith(SYSTEM_PREFIXES)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`. At the end of the block the file is flushed and renamed to `path`.

    After a crash `path` is a complete file or absent. A full disk is a `UserError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Processes of several hosts or containers may have the same process id.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with full_disk_explained(path):
            yield temporary
            flush(temporary)
            os.replace(temporary, path)
            flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def writing_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder in `folder` for a library that writes files itself.

    At the end of the block the files are flushed and renamed to the same relative paths in `folder`, where they replace
    files of the same names. After a crash each of them is complete or absent.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".files.{os.getpid()}-{secrets.token_hex(4)}.tmp"
    temporary.mkdir()
    try:
        with full_disk_explained(folder):
            yield temporary
            for path in sorted(path for path in temporary.rglob("*") if path.is_file()):
                flush(path)
                target = folder / path.relative_to(temporary)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders of one file system in one step.

    Returns False where the kernel or the file system cannot do this, as some network file systems; nothing has changed
    then.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux with glibc 2.28 or musl 1.2.6
    if renameat2 is None:
        return False
    if renameat2(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))


def drop_unfinished(folder: Path) -> None:
    """Delete the temporary files that killed processes have left in a folder: all names that begin with a dot.

    They are `.NAME.PROCESS.tmp` (`writing`, `writing_files`), and `.tmp` with six letters of safetensors. NFS does not
    let its own `.nfs` files be deleted while a process has them open.
    """
    for path in sorted(folder.rglob(".*")):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        elif not is_system_file(path.name):
            path.unlink(missing_ok=True)


def follow_umask(files: Iterable[Path], folder: Path) -> None:
    """Give files the mode that a new file in the folder has. Some libraries write files for this user only."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".mode.", suffix=".tmp") as new:
        (probe := Path(new) / "probe").touch()
        mode = probe.stat().st_mode
    for path in files:
        if path.stat().st_mode != mode:
            with contextlib.suppress(PermissionError):  # another user wrote it in an interrupted attempt
                path.chmod(stat.S_IMODE(mode))


@contextlib.contextmanager
def writing_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, which is absent or empty. At the end it is renamed to `folder`.

    After a crash `folder` is complete or absent. The next attempt deletes the temporary folder of the last.
    """
    folder = folder.absolute()
    temporary = folder.with_name(f".{folder.name}.unfinished")
    temporary.mkdir(parents=True, exist_ok=True)
    with _exclusive(temporary, folder), full_disk_explained(folder):
        try:
            yield temporary
            for path in (*temporary.rglob("*"), temporary):
                flush(path)
            os.rename(temporary, folder)
            flush(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def _exclusive(temporary: Path, folder: Path) -> Iterator[None]:
    """Lock a folder during a block and clear it first. Raises UserError where another process has the lock."""
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its last owner may have renamed it between the opening and the lock.
            locked = os.path.samestat(os.fstat(descriptor), temporary.stat())
        except (BlockingIOError, FileNotFoundError):
            locked = False
        if not locked:
            raise UserError(f"{folder}: another process is writing it; wait for its end, or name another folder")
        for leftover in temporary.iterdir():
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a small file completely or not at all."""
    with writing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def flush(path: Path) -> None:
    """Have the kernel write a file, or a folder's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def full_disk_explained(path: Path) -> Iterator[None]:
    """Raise UserError with the path in place of the error for a full disk or another limit of the system."""
    try:
        yield
    except Exception as error:
        if limit := limit_reached(error):
            raise UserError(f"{path}: {limit}") from error
        raise


def limit_reached(error: BaseException) -> str | None:
    """Return which limit of the system caused an error and what to do, or None for any other error.

    Libraries wrap the system's error in their own, so its message is searched too.
    """
    number = error.errno if isinstance(error, OSError) else None
    for limit, message in LIMITS.items():
        if number == limit or os.strerror(limit) in str(error):
            return f"{message} and run the same command again"
    return None
