"""How much memory encoding and searching take as a collection grows: `python -m benchmarks.memory`.

Counted is anonymous memory, which the kernel cannot drop; stored vectors are memory-mapped, and their pages are the
file's. Each stage runs in a fresh process, on collections of random passages, for each view; the peak is sampled every
few milliseconds, and what imports take is in it. What grows with the collection is the ids and places of its passages;
vectors would take the bytes that stand beside them.

Writes `benchmarks/results/memory.json`.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers.pre_tokenizers import WhitespaceSplit

from models import bert, retriever
from models.encoder import DenseEncoder
from models.retriever import Retriever, Settings
from models.tokens import Tokenizer
from models.views import dense, late, lexical
from storage.artifact import Artifact
from storage.files import write_atomically
from storage.rows import write_rows
from storage.store import Store
from storage.tables import Checkpoint, Index, Passages, Queries, Vectors
from storage.vectors import bytes_per_passage
from tasks.cost import numbered
from tasks.encode import Encoding, encode
from tasks.engines.exact import Exact
from tasks.index import index
from tasks.search import Search, search
from tasks.stage import Execution, Session, session

SIZES = (16_000, 64_000, 256_000)
WORDS, LENGTH, QUERIES, DEPTH, SPREAD = 2_000, 24, 64, 100, 0.2
VIEWS = {
    "dense": Settings(dense=dense.Settings(dim=None)),
    "lexical": Settings(lexical=lexical.Settings(
        activation="log1p_relu", head="mlm", pool_specials=True, top_passages=64, top_queries=32
    )),
    "late": Settings(late=late.Settings(
        dim=64, bias=False, normalise=True, exact_match=False, skip_punctuation=False, query_masks=None, use_cls=True,
        use_sep=True,
    )),
}  # fmt: skip
RESULT = Path(__file__).parent / "results" / "memory.json"


def main() -> None:
    """Measure every view at every size, and write the table."""
    rows = [measured(view, size) for view in VIEWS for size in SIZES]
    machine = {"cores": os.cpu_count(), "system": platform.platform(), "torch": torch.__version__}
    write_atomically(RESULT, json.dumps({"rows": rows, "machine": machine}, indent=1) + "\n")


def measured(view: str, size: int) -> dict[str, Any]:
    """One row: a collection is made, encoded and searched, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        made, encoded, searched = (told(step, view, size, folder) for step in ("make", "encode", "search"))
        row = {"view": view, "passages": size, "imports_MiB": made, "encoding_MiB": encoded, "searching_MiB": searched}
        row["stored_MiB"] = round(bytes_per_passage(Path(folder) / "vectors")[view] * size / 2**20, 1)
    print(", ".join(f"{name} {value}" for name, value in row.items()))
    return row


def told(step: str, view: str, size: int, folder: str) -> float:
    """What a process of its own says of a step."""
    command = [sys.executable, "-m", "benchmarks.memory", step, view, str(size), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.splitlines()[-1])


def work(step: str, view: str, size: int, folder: Path) -> float:
    """Do one step, and tell the most memory that it had: in MiB; of `make`, what there was at its begin."""
    passages, queries, checkpoint, vectors, flat = (
        folder / each for each in ("passages", "queries", "checkpoint", "vectors", "index")
    )
    corpus: Artifact[Passages] = Artifact("benchmark", "passages", passages)
    asked: Artifact[Queries] = Artifact("benchmark", "queries", queries)
    retriever: Artifact[Checkpoint] = Artifact("benchmark", "checkpoint", checkpoint)
    stored: Artifact[Vectors] = Artifact("benchmark", "vectors", vectors)
    exact: Artifact[Index] = Artifact("benchmark", "index", flat)
    before = anonymous() / 2**10
    with session(Session(Store(folder / "store"), Execution(threads=1, device="cpu"))), Peak() as peak:
        if step == "make":
            make(passages, queries, size)
            save_checkpoint(checkpoint, VIEWS[view])
            for each in (vectors, flat, folder / "run"):
                each.mkdir()
            return round(before, 1)
        if step == "encode":
            lengths = Encoding(query_max_tokens=LENGTH, passage_max_tokens=LENGTH)
            encode.body(vectors, corpus, retriever, settings=lengths)
            index.body(flat, corpus, stored, None, settings=Exact(engine="exact"))
        else:
            settings = Search(documents=DEPTH, view=view)
            search.body(folder / "run", exact, stored, asked, retriever, corpus, settings=settings)
    return peak.mebibytes


def make(passages: Path, queries: Path, size: int) -> None:
    """Random passages and questions."""
    random = np.random.default_rng(0)
    write_rows(passages, Passages, (
        {"passage_id": f"p{n}", "doc_id": f"p{n}", "title": "", "text": text(random), "start": 0, "end": 1,
         "num_tokens": LENGTH} for n in range(size)
    ))  # fmt: skip
    write_rows(queries, Queries, ({"query_id": f"q{n}", "text": text(random)} for n in range(QUERIES)))


def text(random: np.random.Generator) -> str:
    return " ".join(f"piece{number}" for number in random.integers(WORDS - 10, size=LENGTH - 2))


def save_checkpoint(folder: Path, views: Settings) -> None:
    """A small random retriever and its tokenizer."""
    torch.manual_seed(0)
    config = bert.BertConfig(
        vocab_size=WORDS, hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=128,
        max_position_embeddings=64,
    )  # fmt: skip
    tokenizer: Tokenizer = numbered(WORDS)
    folder.mkdir()
    made = Retriever(DenseEncoder(bert.BertForMaskedLM(config), "cls"), views, tokenizer)
    with torch.no_grad():
        for parameter in made.parameters():  # else all texts are nearly alike, and every score is a tie
            parameter.add_(torch.randn_like(parameter) * SPREAD)
    retriever.save(made, folder)
    tokenizer._fast.pre_tokenizer = WhitespaceSplit()
    tokenizer._fast.save(str(folder / "tokenizer.json"))


class Peak:
    """The most anonymous memory that this process has in a block."""

    mebibytes = 0.0

    def __enter__(self) -> Peak:
        self._most, self._over = anonymous(), threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._thread.join()
        self.mebibytes = round(self._most / 2**10, 1)

    def _watch(self) -> None:
        while not self._over.is_set():
            self._most = max(self._most, anonymous())
            time.sleep(0.005)


def anonymous() -> int:
    """KiB that belong to no file, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])))
    else:
        main()
