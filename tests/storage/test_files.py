"""What is published was written completely and declared by its table, and may be read by those the umask lets."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from storage import tables
from storage.files import writing_files
from storage.store.manifest_checks import find_damage
from storage.store.publishing import UndeclaredFile
from storage.store.store import Store
from storage.tables import Checkpoint, Index, Table, Vectors
from tasks.session import Session, session
from tasks.stage import stage

KILLED = """
import resource, signal, sys
import numpy as np
from safetensors.numpy import save_file
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills the process when the file reaches a mebibyte
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
save_file({"weights": np.zeros(2**20, np.float32)}, sys.argv[1])
"""


@stage(version=1, table=Checkpoint)
def save(out: Path) -> None:
    """Write a model as libraries do."""
    with writing_files(out) as folder:
        save_file({"weights": np.zeros(3, np.float32)}, folder / "model.safetensors")
        (folder / "query").mkdir()
        (folder / "query" / "config.json").write_text("{}")


def test_a_kill_while_a_library_saves_weights_leaves_nothing_that_is_published(store: Store, tmp_path: Path) -> None:
    with session(Session(Store(tmp_path / "unbroken"))):
        unbroken = save()
    work = store.begin(save.name, unbroken.key)
    library = subprocess.run([sys.executable, "-c", KILLED, str(work / "model.safetensors")], check=False)
    assert library.returncode == -signal.SIGXFSZ
    assert [re.sub("[^.]{6}$", "", path.name) for path in work.iterdir()] == [".tmp"]  # the library's own name

    built = save()

    assert {path.name for path in built.path.iterdir()} == {"manifest.json", "model.safetensors", "query"}
    hashes = [other.manifest(built.stage, built.key) for other in (store, Store(tmp_path / "unbroken"))]
    assert hashes[0] is not None
    assert hashes[1] is not None
    assert hashes[0].hash == hashes[1].hash


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_modes_of_files_follow_the_umask(umask: int, mode: int, store: Store) -> None:
    before = os.umask(umask)
    try:
        built = save()
    finally:
        os.umask(before)

    files = [path for path in built.path.rglob("*") if path.is_file()]
    assert {path.name: stat.S_IMODE(path.stat().st_mode) for path in files} == {path.name: mode for path in files}
    assert len(files) == 3
    assert find_damage(built.path) == []


def test_a_block_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> None:
        with writing_files(tmp_path) as folder:
            (folder / "config.json").write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_table_does_not_declare_is_not_published_and_nothing_is_lost(store: Store) -> None:
    with session(Session(store, planning=True)):
        key = save().key
    work = store.begin(save.name, key)
    (work / "notes.md").write_text("user's")

    with pytest.raises(UndeclaredFile, match=r"notes\.md: save may not publish this file: Checkpoint has \*\.json"):
        save()

    assert store.manifest(save.name, key) is None
    assert (work / "notes.md").read_text() == "user's"
    assert (work / "model.safetensors").exists()
    (work / "notes.md").unlink()
    with session(Session(store)):
        assert save().path.exists()


def test_a_link_is_not_published(store: Store, tmp_path: Path) -> None:
    with session(Session(store, planning=True)):
        key = save().key
    (store.begin(save.name, key) / "vocab.txt").symlink_to(tmp_path)

    with pytest.raises(UndeclaredFile, match=r"vocab\.txt: save may not publish a link"):
        save()


KINDS = [kind for kind in vars(tables).values() if isinstance(kind, type) and issubclass(kind, Table)]


@pytest.mark.parametrize("kind", KINDS)
def test_no_table_declares_a_temporary_file(kind: type[Table]) -> None:
    names = [".tmpAbC123", ".part-00000.parquet.7-ab.tmp", "model.safetensors.tmp", "x/../part-00000.parquet", "core"]
    assert not [name for name in names if kind.declares(name)]
    assert kind.declares("logs/tensorboard/events.out.tfevents.1.host.2.0")


def test_patterns_match_within_a_folder() -> None:
    assert Vectors.declares("late/00000.ids.npy")
    assert not Vectors.declares("late/more/00000.ids.npy")
    assert Index.declares("bm25s/data.csc.index.npy")
    assert not Index.declares("index.faiss/x")
