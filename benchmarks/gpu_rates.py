"""What steps do not show of a GPU: generation, a teacher's scores, and exact search: `python -m benchmarks.gpu_rates`.

The work is done by the code of the stages, on the GPU that is here, with random weights and vectors; the process has
one thread. `benchmarks/results/gpu_rates.cuda.json` has the seconds, from which `docs/scale.md` is made.

- *generate*: a T5 of T5-base's shape writes five queries for passages of full length, as many as fill two batches;
- *score*: the teacher of `dup_mae`, of BERT-base's shape, scores pairs of full length;
- *search*: lists of the best passages by each representation, as in mining. The first pass reads the vectors from files
  in the system's cache and copies them to the GPU, which keeps them for the next. Then lists are scored on the CPU.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks import results
from benchmarks.encoders import BERT_BASE, on_one_thread, save_word_pieces
from benchmarks.exact_search import bert_like_vectors
from benchmarks.generation import QUERIES, T5_BASE, Settings, num_written, ours
from benchmarks.gpu_steps import PACKAGES
from benchmarks.random_t5 import LONGEST, START, make_model, name
from benchmarks.searched import stored
from flows.recipe.load import load_recipe
from models.retrievers import cross_encoder
from models.retrievers.cross_encoder import CrossEncoder
from storage.files import write_atomically
from storage.store import sources
from storage.vectors import Encoded, SparseRows, TokenRows
from tasks.cross_encoder.pairs import Scorer
from tasks.estimates.flops import Costs
from tasks.retrieval.engines.exact import ExactSearch
from tasks.retrieval.exact_search.double_scores import StoredVectors
from tasks.retrieval.ranking import Indices
from tasks.runtime.device import choose_device

PATH = results.path_of("gpu_rates", "cuda")
TURNS, FIRST_TURNS = 3, 1  # those that are measured, and those before them that are not
BATCH_TOKENS = 65_536  # of generation, as in the papers' recipes
TEACHER = "dup_mae"
DEPTH = 250  # of a list from which negatives are sampled, as in `mining_costs.py`
PIECES, QUERY_PIECES, LATE_WIDTH, LEXICAL_TOKENS, VOCABULARY = 77, 32, 128, 150, 30_522  # as there

Result = dict[str, Any]


def main() -> None:
    """Measure one after the other; each is written at once."""
    cases: dict[str, Result] = {}
    result = {"machine": results.machine("cuda", PACKAGES), "cases": cases}
    with on_one_thread("cuda"):
        for case, measured in measurements():
            cases[case] = measured
            print(case, json.dumps(measured), flush=True)
            write_atomically(PATH, json.dumps(result, indent=1) + "\n")


def measurements(shrink: int = 1) -> Iterator[tuple[str, Result]]:
    """Yield each measurement by its name, of work that is divided by `shrink`."""
    yield "generate", generation(2 * BATCH_TOKENS // LONGEST // shrink)
    yield "score", scoring(16_384 // shrink)
    for view, queries, passages in (("dense", 16_384, 524_288), ("lexical", 4096, 524_288), ("late", 512, 65_536)):
        yield f"search {view}", search(view, queries // shrink, passages // shrink)


def generation(passages: int) -> Result:
    """Return the seconds in which a T5 writes queries for passages of full length, and the numbers of tokens."""
    draws = np.random.default_rng(0)
    given = [
        " ".join(name(number) for number in draws.integers(START + 1, T5_BASE.vocabulary, size=LONGEST - 1))
        for _ in range(passages)
    ]
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), T5_BASE)
        write = ours(Path(folder), choose_device(), Settings(BATCH_TOKENS))
    written = write(given)
    tokens = num_written(written) + sum(map(len, written))  # each query ends with a token of its own
    return _timed(lambda: write(given)) | {
        "passages": passages, "passage_tokens": LONGEST, "queries": QUERIES * passages, "query_tokens": tokens,
    }  # fmt: skip


def scoring(pairs: int) -> Result:
    """Return the seconds in which a cross-encoder scores pairs of full length, and the FLOPs."""
    recipe, _ = load_recipe(TEACHER, ["dataset.path=nowhere"])
    assert recipe.teacher
    settings, costs = recipe.teacher.score, Costs(Path("nowhere"), recipe.backbone)
    with tempfile.TemporaryDirectory() as folder:
        save_word_pieces(Path(folder), BERT_BASE.vocab_size)
        cross_encoder.save(CrossEncoder(BERT_BASE), Path(folder))
        scorer = Scorer(sources.weights(folder), settings)
    given = [(costs.ids(settings.max_tokens), settings.max_tokens // 2)] * pairs
    return _timed(lambda: scorer(given, lambda number: None)) | {
        "pairs": pairs, "tokens": settings.max_tokens, "flops": pairs * costs.scoring(settings).flops,
    }  # fmt: skip


def search(view: str, queries: int, passages: int) -> Result:
    """Return the seconds of the first pass over a view's vectors and of the next, and those of scoring in each."""
    texts = VECTORS[view](np.random.default_rng(8), queries, passages)
    with stored(texts[1]) as (vectors, ids), on_one_thread("cuda"):
        timed = TimedVectors(vectors.folder, view)
        found = ExactSearch(timed, ids)
        found(texts[0].taken(np.arange(min(64, queries))), DEPTH)  # compiles kernels
        found = ExactSearch(timed, ids)
        passes = []
        for _ in range(2):
            timed.seconds = 0.0
            passes.append({"seconds": _seconds(lambda: found(texts[0], DEPTH)), "scoring": timed.seconds})
    return {"queries": queries, "passages": passages, "depth": DEPTH, "first": passes[0], "next": passes[1]}


class TimedVectors(StoredVectors):
    """Stored vectors that count the seconds in which lists are scored in double precision."""

    seconds = 0.0

    def scores(self, queries: Encoded, query_rows: Indices, passage_rows: Indices) -> NDArray[np.float32]:
        """Return the scores of pairs, as `StoredVectors` does."""
        started = time.perf_counter()
        scores = super().scores(queries, query_rows, passage_rows)
        self.seconds += time.perf_counter() - started
        return scores


def _dense(draws: np.random.Generator, queries: int, passages: int) -> tuple[Encoded, Encoded]:
    vectors_ND = bert_like_vectors(draws, queries + passages)
    return Encoded(dense=vectors_ND[:queries]), Encoded(dense=vectors_ND[queries:])


def _lexical(draws: np.random.Generator, queries: int, passages: int) -> tuple[Encoded, Encoded]:
    """Draw the texts' tokens so that the n-th most frequent one is in a share of the texts that falls with n."""
    shares = np.arange(1, VOCABULARY + 1) ** -0.7
    edges = np.cumsum(shares / shares.sum())

    def rows(count: int, tokens: int) -> Encoded:
        drawn_NT = np.sort(np.searchsorted(edges, draws.random((count, tokens), dtype=np.float32)), axis=1)
        drawn_NT = drawn_NT.clip(max=VOCABULARY - 1)
        is_new_NT = np.diff(drawn_NT, axis=1, prepend=-1) > 0
        offsets = np.concatenate([[0], np.cumsum(is_new_NT.sum(axis=1))]).astype(np.int64)
        values = draws.gamma(1.0, size=int(offsets[-1])).astype(np.float32)
        return Encoded(lexical=SparseRows(offsets, drawn_NT[is_new_NT].astype(np.int32), values))

    return rows(queries, QUERY_PIECES), rows(passages, LEXICAL_TOKENS)


def _late(draws: np.random.Generator, queries: int, passages: int) -> tuple[Encoded, Encoded]:
    """Draw unit vectors around a direction of each text, so that some passages are closer to a query than others."""

    def rows(count: int, tokens: int) -> Encoded:
        texts_N1D = draws.standard_normal((count, 1, LATE_WIDTH), dtype=np.float32)
        vectors_NTD = texts_N1D + draws.standard_normal((count, tokens, LATE_WIDTH), dtype=np.float32)
        vectors_NTD /= np.linalg.norm(vectors_NTD, axis=2, keepdims=True)
        offsets, ids = np.arange(count + 1, dtype=np.int64) * tokens, np.empty(0, np.int32)
        return Encoded(late=TokenRows(offsets, vectors_NTD.reshape(-1, LATE_WIDTH), ids))

    return rows(queries, QUERY_PIECES), rows(passages, PIECES)


VECTORS = {"dense": _dense, "lexical": _lexical, "late": _late}


def _timed(work: Callable[[], object]) -> Result:
    """Return the median of the seconds of some turns with their range."""
    seconds = [_seconds(work) for _ in range(FIRST_TURNS + TURNS)][FIRST_TURNS:]
    return {"seconds": statistics.median(seconds), "fastest": min(seconds), "slowest": max(seconds)}


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
