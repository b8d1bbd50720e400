"""The index and the texts of all passages in a stage's work folder, which its processes share as memory maps."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from storage.artifact import Artifact
from storage.external.mapped_index import DERIVED, MappedPassageIndex, write_passage_index
from storage.external.mapped_strings import mapped_strings, write_passage_texts
from storage.store.publishing import SCRATCH
from storage.tables import Passages
from tasks.runtime import distributed
from tasks.runtime.leftovers import record, unfinished
from tasks.runtime.work_folder import PASSAGE_INDEX, PASSAGE_TEXTS


def share_passages(out: Path, passages: Artifact[Passages], *, ordered: bool = True) -> MappedPassageIndex:
    """Return the index of the passages; write it first, unless an earlier attempt of the stage has.

    Only with `ordered` it has the order of the ids, which ranks equal scores.
    """
    shutil.rmtree(out / SCRATCH / DERIVED, ignore_errors=True)  # its files are not recorded
    write_once(out, PASSAGE_INDEX, lambda folder: write_passage_index(folder, passages, ordered=ordered))
    return shared_passages(out)


def shared_passages(out: Path) -> MappedPassageIndex:
    """Return the index of the passages, which `share_passages` has written for this stage."""
    return MappedPassageIndex(out / PASSAGE_INDEX)


@contextlib.contextmanager
def temporary_index(passages: Artifact[Passages], *, ordered: bool = True) -> Iterator[MappedPassageIndex]:
    """Yield the index of the passages in a temporary folder (TMPDIR), for a command, which has no work folder.

    It takes about 100 bytes a passage there. Only with `ordered` it has the order of the ids.
    """
    with tempfile.TemporaryDirectory(prefix="pretrieve-") as name:
        folder = Path(name) / PASSAGE_INDEX
        write_passage_index(folder, passages, ordered=ordered)
        yield MappedPassageIndex(folder)


def share_texts(out: Path, passages: Artifact[Passages]) -> pa.Array:
    """Return the texts of the passages, with titles; write them first, unless an earlier attempt of the stage has."""
    write_once(out, PASSAGE_TEXTS, lambda folder: write_passage_texts(folder, passages))
    return mapped_strings(out / PASSAGE_TEXTS)


@dataclass(frozen=True)
class PassagesWithTexts:
    """All passages, with their texts, read from the files of a stage's work folder."""

    passages: Artifact[Passages]
    index: MappedPassageIndex
    passage_texts: pa.Array

    def __len__(self) -> int:
        return len(self.index)

    @staticmethod
    def share(out: Path, passages: Artifact[Passages]) -> PassagesWithTexts:
        """Return the passages; of several processes that train together, the first writes the files."""
        if not distributed.rank():
            share_passages(out, passages, ordered=False)
            share_texts(out, passages)
        distributed.barrier()
        return PassagesWithTexts(passages, shared_passages(out), mapped_strings(out / PASSAGE_TEXTS))

    def texts(self, rows: Sequence[int]) -> list[str]:
        """Return the texts of passages as a model reads them, with their titles."""
        texts: list[str] = self.passage_texts.take(pa.array(rows, pa.int64())).to_pylist()
        return texts

    def documents(self, rows: Sequence[int]) -> list[str]:
        """Return the document ids of passages."""
        doc_ids: list[str] = self.index.doc_ids.take(pa.array(self.index.documents[list(rows)])).to_pylist()
        return doc_ids


def write_once(out: Path, folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder for all processes of a stage, unless it is there with the bytes that were recorded."""
    name = str(folder)
    if unfinished(out, [name]):
        building = out / f"{name}_unfinished"
        shutil.rmtree(building, ignore_errors=True)
        write(building)
        building.rename(out / name)
        record(out, name)
