"""MS MARCO passage ranking in its official files (Nguyen et al. 2016; for non-commercial research), plain or gzipped.

collection.tsv: pid, passage; msmarco-docs.tsv: docid, url, title, body; queries.*.tsv: qid, query; all with tabs
between. Judgements are qid, 0 or Q0, pid, grade, with tabs or blanks between, and name passages. `dev` is the small
dev set that papers report; `dl19` and `dl20` are the topics of the TREC Deep Learning tracks, graded 0 to 3, where 1
("related") is not relevant. Texts are not changed; some passages have known decoding errors.
The official passages have no titles. RocketQA (Qu et al. 2021) published titles from the linked documents, in
https://rocketqa.bj.bcebos.com/corpus/marco.tar.gz: its para.title.txt (pid, title, in the collection's order; "-" for
no title) is read next to collection.tsv. `pretrieve fetch` takes it from there, or from the same corpus of Tevatron
(https://huggingface.co/datasets/Tevatron/msmarco-passage-corpus).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from storage.errors import UserError
from storage.formats.ids import Unique
from storage.formats.lines import plain_or_gzipped
from storage.formats.records import QrelRow, QueryRow, TextRow
from storage.formats.tsv_files import ids, read_columns, read_qrels, read_queries

FETCH = (
    "`pretrieve fetch msmarco DIR` fetches it (https://microsoft.github.io/msmarco/Datasets and "
    "https://trec.nist.gov/data/deep.html have it)"
)
TITLES_FROM = (
    "`pretrieve fetch msmarco_titles {folder}` fetches para.title.txt, which RocketQA's authors published (Microsoft's "
    "files lack titles)"
)
TEXTS = {"corpus": "collection.tsv", "documents": "msmarco-docs.tsv"}
TITLES = "para.title.txt"
TOPICS: dict[str, tuple[list[str], str]] = {  # candidate files of queries (the first present one is read), and qrels
    "train": (["queries.train.tsv"], "qrels.train.tsv"),
    "dev": (
        ["queries.dev.small.tsv", "queries.dev.tsv"],
        "qrels.dev.small.tsv",
    ),  # the large file has all of the small
    "dl19": (["msmarco-test2019-queries.tsv"], "2019qrels-pass.txt"),
    "dl20": (["msmarco-test2020-queries.tsv"], "2020qrels-pass.txt"),
}
RELEVANT_FROM = {"dl19": 2, "dl20": 2}
NUM_ROWS: dict[tuple[str, str | None], int] = {
    ("corpus", None): 8_841_823,
    ("documents", None): 3_213_835,
    ("queries", "train"): 502_939,
    ("queries", "dev"): 6_980,
    ("queries", "dl19"): 43,
    ("queries", "dl20"): 54,
    ("qrels", "train"): 532_761,
    ("qrels", "dev"): 7_437,
    ("qrels", "dl19"): 9_260,
    ("qrels", "dl20"): 11_386,
}
"""Numbers of texts, judged queries and judgements of the complete collection, for plans without the data.

Files with other counts are read, too, unless the recipe requires the complete collection."""
CHECKSUMS = {  # from ir_datasets 0.6.3 (etc/downloads.json), except
    "collection.tsv": "31e42eeac3a3ea1b75c689c483be4484",  # from copies of others (only the archive's is published),
    "msmarco-docs.tsv.gz": "103b19e21ad324d8a5f1ab562425c0b4",  # from the page of the TREC 2019 track,
    "queries.dev.small.tsv": "4621c583f1089d223db228a4f95a05d1",  # and from docTTTTTquery's page
    "qrels.dev.small.tsv": "38a80559a561707ac2ec0f150ecd1e8a",
    "qrels.train.tsv": "733fb9fe12d93e497f7289409316eccf",
    "msmarco-test2019-queries.tsv.gz": "eda71eccbe4d251af83150abe065368c",
    "2019qrels-pass.txt": "2f4be390198da108f6845c822e5ada14",
    "msmarco-test2020-queries.tsv.gz": "00a406fb0d14ed3752d70d1e4eb98600",
    "2020qrels-pass.txt": "0355ccee7509ac0463e8278186cdd8d1",
}


def files(path: Path, part: str, split: str | None) -> list[Path]:
    """Return the file of a part; for "corpus" also the titles, if present, and for "queries" the split's qrels."""
    if part in TEXTS:
        titles = _titles(path) if part == "corpus" else None
        return [find(path, [TEXTS[part]]), *([titles] if titles else [])]
    return topic_files(path, part, split, reader="msmarco", topics=TOPICS)


def has_titles(path: Path, name: str) -> bool:
    """Return whether the texts have titles: documents always, passages where RocketQA's file is present."""
    return name != "corpus" or _titles(path) is not None


def texts(path: Path, name: str) -> Iterator[TextRow]:
    """Yield the passages, or the documents with their titles."""
    return read_documents(files(path, name, None)[0]) if name == "documents" else _passages(path)


def queries(path: Path, split: str) -> Iterator[QueryRow]:
    """Yield every row of the split's file of queries, judged or not."""
    return read_queries(files(path, "queries", split)[0])


def qrels(path: Path, split: str) -> Iterator[QrelRow]:
    """Yield the split's judgements, a duplicate row once. Raises UserError for two grades of one pair."""
    return read_qrels(files(path, "qrels", split)[0], "passage")


def read_documents(file: Path) -> Iterator[TextRow]:
    """Yield the rows of msmarco-docs.tsv. A document with neither title nor body has its URL as title."""
    seen = Unique()
    for where, (doc_id, url, title, body) in read_columns(file, 4):
        name = title if title.strip() or body.strip() else url
        if not name.strip() and not body.strip():
            raise UserError(f"{where}: document {doc_id} is empty: expected a title or a text; remove the row")
        seen.add(doc_id)
        yield {"doc_id": doc_id, "title": name, "text": body}
    seen.check(lambda: ids(file))


def topic_files(
    path: Path, part: str, split: str | None, *, reader: str, topics: Mapping[str, tuple[list[str], str]]
) -> list[Path]:
    """Return the file of a split's qrels, for "queries" after the file of its queries. Raises UserError if missing."""
    if split is None or split not in topics:
        raise UserError(f"{path}: {reader} has no split {split!r}; its splits are {', '.join(topics)}")
    queries_files, qrels_file = topics[split]
    qrels_path = find(path, [qrels_file])
    return [qrels_path] if part == "qrels" else [find(path, queries_files), qrels_path]


def find(path: Path, names: Sequence[str]) -> Path:
    """Return the first of the files that is present, plain or gzipped. Raises UserError where none is."""
    for name in names:
        if file := plain_or_gzipped(path / name):
            return file
    others = "".join(f", {other}" for other in names[1:])
    raise UserError(f"{path / names[0]}: no such file{others}, nor gzipped (.gz); {FETCH}")


def _passages(path: Path) -> Iterator[TextRow]:
    """Yield the passages with their titles. Both files have the same order, so no title is kept in memory."""
    file, seen = files(path, "corpus", None)[0], Unique()
    titles = chain(read_columns(titles_file, 2) if (titles_file := _titles(path)) else (), [("", ["", ""])])
    title_line, (titled_id, title) = next(titles)
    for where, (doc_id, text) in read_columns(file, 2):
        if not text.strip():
            raise UserError(f"{where}: document {doc_id} is empty: expected a title or a text; remove the row")
        own = ""
        if titled_id == doc_id:
            own = "" if title == "-" else title
            title_line, (titled_id, title) = next(titles)
        seen.add(doc_id)
        yield {"doc_id": doc_id, "title": own, "text": text}
    if title_line:
        raise UserError(
            f"{title_line}: {file.name} has no passage {titled_id} here; expected RocketQA's titles, in its order"
        )
    seen.check(lambda: ids(file))


def _titles(path: Path) -> Path | None:
    return plain_or_gzipped(path / TITLES)
