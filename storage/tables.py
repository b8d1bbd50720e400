"""The tables that stages pass on: one class a table, with its Arrow schema and the meaning of a row.

A stage's type names its table (`Artifact[Passages]`); `storage.rows` refuses columns that are not the schema's.
"""

import hashlib
from collections.abc import Collection
from fnmatch import fnmatchcase
from typing import ClassVar

import pyarrow as pa


def _schema(*, nullable: Collection[str] = (), **columns: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in columns.items()])


def _texts() -> pa.DataType:
    return pa.list_(pa.field("element", pa.string(), nullable=False))


class Table:
    """A kind of artifact. `schema` is None where the artifact is a folder of another format."""

    schema: ClassVar[pa.Schema | None] = None
    files: ClassVar[tuple[str, ...]] = ("part-*.parquet",)
    """Patterns of the relative paths of files that a stage may publish. Logs may have any name."""

    @classmethod
    def declares(cls, name: str) -> bool:
        """Return whether a stage of this table may publish a file. `*` matches within one part of the path."""
        parts = name.split("/")
        patterns = [pattern.split("/") for pattern in cls.files]
        return parts[0] == "logs" or any(
            len(pattern) == len(parts) and all(map(fnmatchcase, parts, pattern)) for pattern in patterns
        )


class Documents(Table):
    """Unsplit source texts, in the order of the collection. Qrels refer to them."""

    schema = _schema(doc_id=pa.string(), title=pa.string(), text=pa.string())


class Passages(Table):
    """The retrieved units: `text` is characters [start, end) of its document's text.

    `title` is the document's title where the recipe puts titles into all passages, else empty. Where the title begins
    the document, `start` and `end` count from the title's first character (`passage_text` of the document).
    `num_tokens` counts tokens of `text`, without special tokens.
    """

    schema = _schema(
        passage_id=pa.string(), doc_id=pa.string(), title=pa.string(), text=pa.string(), start=pa.int32(),
        end=pa.int32(), num_tokens=pa.int32(),
    )  # fmt: skip


class Queries(Table):
    """Queries of one split."""

    schema = _schema(query_id=pa.string(), text=pa.string())


class Qrels(Table):
    """Relevance judgements of one split, by document; a grade of 0 is a judged non-relevant."""

    schema = _schema(query_id=pa.string(), doc_id=pa.string(), grade=pa.int32())


class Answers(Table):
    """The accepted answers to the queries of one split, where a passage that contains one is relevant."""

    schema = _schema(query_id=pa.string(), answers=_texts())


class PseudoQueries(Table):
    """Generated queries of passages, in the passages' order; `rank` numbers those of a passage from 0.

    Only rows that are `kept` are used; `reason` says why others are not: "empty" (nothing was generated), or the
    reason of a filter, such as "round trip". `passage_sha256` is the hash of the passage's title and text. `generator`
    is its name in the recipe, `revision` the key of its files or its commit, `ledger` the key of the generation cache
    (empty for imported queries), and `draw` counts how often the passage's queries have been invalidated. `round_trip`
    is the rank of the own passage in BM25's list for the query, from 1, or 0 where the list lacks it; `relevance` is a
    cross-encoder's score. Both are null where they were not computed.
    """

    schema = _schema(
        nullable=("round_trip", "relevance"),
        passage_id=pa.string(), doc_id=pa.string(), passage_sha256=pa.string(), rank=pa.int32(), query=pa.string(),
        generator=pa.string(), revision=pa.string(), ledger=pa.string(), seed=pa.int64(), draw=pa.int32(),
        round_trip=pa.int32(), relevance=pa.float32(), kept=pa.bool_(), reason=pa.string(),
    )  # fmt: skip


class GeneratedQueries(Table):
    """Queries in the generation cache (`storage.generation_cache.cache`), by the text that they were generated for."""

    schema = _schema(passage_sha256=pa.string(), rank=pa.int32(), draw=pa.int32(), query=pa.string())


class Pairs(Table):
    """The data of pre-training: a passage's text, and its contexts, from which each epoch samples one.

    `queries` are pseudo-queries (the query itself in a probe), `passages` other passages or sentences; both are empty
    where the recipe requests none.
    """

    schema = _schema(passage_id=pa.string(), text=pa.string(), queries=_texts(), passages=_texts())


class Terms(Table):
    """Text frequency and total number of occurrences of each token, by id from 0."""

    schema = _schema(piece=pa.int32(), texts=pa.int64(), occurrences=pa.int64())


class Vocabulary(Table):
    """The kept tokens of a vocabulary, by their new id from 0, with their id and number of occurrences before.

    `tokenizer.json` has only these tokens; `coverage.json` states how texts are tokenised before and after.
    """

    schema = _schema(token=pa.string(), original_id=pa.int32(), occurrences=pa.int64())
    files = ("part-*.parquet", "tokenizer.json", "coverage.json")


class Positives(Table):
    """Positive passages for training; several rows for a query with several relevant documents."""

    schema = _schema(query_id=pa.string(), passage_id=pa.string(), doc_id=pa.string())


class Run(Table):
    """Ranked passages of every query. `rank` starts at 1; rows are ordered by query, view, rank.

    Within a query, scores (float32) fall; equal ones are ordered by descending passage id, as in trec_eval.
    """

    schema = _schema(
        query_id=pa.string(), passage_id=pa.string(), view=pa.string(), rank=pa.int32(), score=pa.float32()
    )


class Negatives(Table):
    """Mined negatives in the order of their rank in the run they were mined from, kept with its score."""

    schema = _schema(query_id=pa.string(), passage_id=pa.string(), rank=pa.int32(), score=pa.float32())


class Vectors(Table):
    """A retriever's representations of all passages, by view, in the layout of `storage.vectors`."""

    files = ("vectors.json", "dense/*.npy", "lexical/*.npy", "late/*.npy")


class TeacherScores(Table):
    """A cross-encoder's scores: higher is more relevant. Only differences within a query are meaningful."""

    schema = _schema(query_id=pa.string(), passage_id=pa.string(), score=pa.float32())


class Weights(Table):
    """`weights.json`: the weights of several runs in their fusion."""

    files = ("weights.json",)


class Overlap(Table):
    """Means over the common queries of two runs: shared passages in the top k, and RBO (Webber et al. 2010)."""

    schema = _schema(
        run_a=pa.string(), run_b=pa.string(), queries=pa.int64(), overlap_10=pa.float64(), overlap_100=pa.float64(),
        overlap_1000=pa.float64(), rbo=pa.float64(),
    )  # fmt: skip


class Metrics(Table):
    """Values by query: folder with `rows.parquet`, `comparisons.parquet`, `queries.parquet`."""

    files = ("rows.parquet", "comparisons.parquet", "queries.parquet")


class Analysis(Table):
    """The result of an analysis: `analysis.json`, and tables for figures with many numbers."""

    files = ("analysis.json", "*.parquet")


class Quality(Table):
    """quality.json: figures of a corpus of pseudo-queries."""

    files = ("quality.json",)


class Comparison(Table):
    """comparison.json: how two corpora of pseudo-queries differ."""

    files = ("comparison.json",)


class Filled(Table):
    """filled.json: the generation cache to which a share of the work has added queries, and which share."""

    files = ("filled.json",)


class Checkpoint(Table):
    """A Hugging Face folder: config.json, model.safetensors, tokenizer files.

    A separate query encoder is in `query/`, and the pooling for sentence-transformers in `1_Pooling/`. Tokenizers have
    files of various names, but of these types.
    """

    files: ClassVar[tuple[str, ...]] = (
        "*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "1_Pooling/config.json",
        "query/*.json", "query/*.safetensors", "query/*.txt", "query/*.model", "query/1_Pooling/config.json",
    )  # fmt: skip


class ConvertedModel(Checkpoint):
    """A model's folder from outside with converted weights; parts such as `2_Dense/` have their own folders."""

    files = tuple(
        folder + name for folder in ("", "*/") for name in ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
    )


class Index(Table):
    """An engine's index folder; `index.json` names the engine and its settings. Lucene's is in `logs/`."""

    files = ("index.json", "index.faiss", "index.seismic", "bm25s/*")


class Report(Table):
    """report.json and report.html."""

    files = ("report.json", "report.html")


def passage_text(title: str, text: str) -> str:
    """Return the text of a passage that engines index and encoders read."""
    return f"{title} {text}" if title else text


def passage_sha256(text: str) -> str:
    """Return the sha256 of a `passage_text` in hexadecimal: the passage's name in the generation cache."""
    return hashlib.sha256(text.encode()).hexdigest()
