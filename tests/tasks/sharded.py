"""A small chain of the stages that are done in shards, over inputs that stages of the test write."""

import json
import random
from pathlib import Path

import pytest

from models.retrievers import retriever
from storage.artifact import Artifact, Source, source_of
from storage.rows import read_rows, write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Checkpoint, Documents, Passages, Positives, Run
from tasks.corpus import split_corpus as splitting
from tasks.corpus.split_corpus import Splitting, split_corpus
from tasks.finetuning import candidates as mining
from tasks.finetuning.mine import mine
from tasks.finetuning.miners.union import Union
from tasks.pseudo_queries.generate_queries import NamedGeneration, generate_queries
from tasks.retrieval import encode as encoding
from tasks.retrieval.encode import Encoding, encode
from tasks.stage import stage
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

GENERATION = NamedGeneration(
    generator="tiny", queries_per_passage=2, prefix="", input_max_tokens=32, top_k=10, top_p=0.95, max_new_tokens=8,
    seed=42, shard_passages=16, batch_tokens=200,
)  # fmt: skip
SHARDED = ("split_corpus", "generate_queries", "encode", "mine")


class Corpus(Settings):
    """How large it is."""

    documents: int


@stage(version=1, table=Documents)
def write_documents(out: Path, *, settings: Corpus) -> None:
    """Documents of a few sentences."""
    draw = random.Random(1)
    sentences = [
        [" ".join(draw.choices(WORDS, k=7)) + "." for _ in range(1 + n % 5)] for n in range(settings.documents)
    ]
    write_rows(out, Documents, [
        {"doc_id": f"d{n}", "title": f"title {n}", "text": " ".join(sentence)} for n, sentence in enumerate(sentences)
    ])  # fmt: skip


@stage(version=1, table=Checkpoint)
def write_checkpoint(out: Path) -> None:
    """A retriever with all views."""
    retriever.save(tiny_retriever("mixture"), out)
    save_tokenizer(out)


@stage(version=1, table=Run)
def write_run(out: Path, passages: Artifact[Passages], *, settings: Corpus) -> None:
    """Twenty passages for each of as many queries as there are documents, of which one run lacks some."""
    names = [row["passage_id"] for row in read_rows(passages, Passages)]
    write_rows(out, Run, [
        {"query_id": f"q{n}", "passage_id": name, "view": "dense", "rank": rank, "score": 1 / rank}
        for n in range(settings.documents) if n % settings.documents != 7
        for rank, name in enumerate(random.Random(n).sample(names, 20), start=1)
    ])  # fmt: skip


@stage(version=1, table=Positives)
def write_positives(out: Path, *, settings: Corpus) -> None:
    """A document for each query but every third."""
    write_rows(out, Positives, [
        {"query_id": f"q{n}", "passage_id": f"d{n}#0", "doc_id": f"d{n}"} for n in range(settings.documents) if n % 3
    ])  # fmt: skip


def cut_small(patch: pytest.MonkeyPatch | None = None) -> None:
    """Have every stage make many shards of this small corpus, here and elsewhere; for good where nothing undoes it."""
    patch = patch or pytest.MonkeyPatch()
    patch.setattr(splitting, "DOCUMENTS_PER_PART", 8)
    patch.setattr(mining, "QUERIES_PER_PART", 5)
    patch.setattr(encoding, "PASSAGES_PER_SHARD", dict.fromkeys(encoding.PASSAGES_PER_SHARD, 8))


def run_chain(store: Store, generator: Path, documents: int = 60) -> dict[str, str]:
    """Build all stages in the current session; the hash of each that is done in shards."""
    size = Corpus(documents=documents)
    tokenizer = Source("tiny", generator)
    passages = split_corpus(
        documents=write_documents(settings=size), tokenizer=tokenizer, settings=Splitting(max_tokens=20, titles=True)
    )  # fmt: skip
    runs = [write_run(passages, settings=size), write_run(passages, settings=Corpus(documents=documents - 9))]
    built = [
        passages,
        generate_queries(
            passages=passages,
            generator=source_of(generator, sorted(generator.iterdir())),
            filled=[],
            settings=GENERATION,
        ),
        encode(
            passages=passages,
            checkpoint=write_checkpoint(),
            settings=Encoding(query_max_tokens=12, passage_max_tokens=24),
        ),
        mine(
            runs=runs,
            positives=write_positives(settings=size),
            passages=passages,
            settings=Union(miner="union", depth=9, negatives=4, seed=1),
        ),
    ]
    manifests = {artifact.stage: store.manifest(artifact.stage, artifact.key) for artifact in built}
    return {name: manifest.hash for name, manifest in manifests.items() if manifest}


def parts_of(store: Store) -> dict[str, int]:
    """How many files each sharded stage has made, of those that a shard makes one of."""
    files = dict.fromkeys(SHARDED, "*/*.parquet") | {"encode": "*/late/*.vectors.npy"}
    folders = {name: name for name in SHARDED} | {"generate_queries": "ledger"}
    return {name: len(list((store.root / folders[name]).glob(files[name]))) for name in SHARDED}


def as_line(hashes: dict[str, str]) -> str:
    """The hashes as one line."""
    return json.dumps(hashes, sort_keys=True)
