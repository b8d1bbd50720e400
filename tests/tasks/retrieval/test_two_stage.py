"""Every approximate engine through its stages, set so that it looks at everything: its run is that of exact search."""

import random

import pyarrow.compute as pc
import pytest

from models.retrievers import retriever
from storage.artifact import Artifact
from storage.rows import read_table
from storage.tables import Checkpoint, Passages, Queries, Run, Vectors
from tasks.retrieval.encode import Encoding, encode
from tasks.retrieval.engines.candidates import Candidates
from tasks.retrieval.engines.exact import Exact
from tasks.retrieval.engines.faiss import Faiss
from tasks.retrieval.engines.seismic import Seismic
from tasks.retrieval.index import EngineSettings, describe, index
from tasks.retrieval.search import Search, search
from tests.tiny import WORDS, save_tokenizer, tiny_retriever

pytestmark = pytest.mark.usefixtures("on_one_thread")
ENGINES: dict[str, EngineSettings] = {
    "dense": Faiss(engine="faiss", factory="HNSW16", ef_search=200, nprobe=None, refine=1),
    "lexical": Seismic(engine="seismic", heap_factor=0, query_cut=1000, summary_energy=1),
    "late": Candidates(
        engine="candidates", factory="Flat", ef_search=None, nprobe=None, tokens_per_query_token=5000, candidates=100
    ),
}


@pytest.fixture(scope="module")
def passages(written) -> Artifact[Passages]:
    draw, blank = random.Random(1), {"title": "", "start": 0, "end": 1, "num_tokens": 1}
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 30))) for _ in range(80)] + ["king stone"] * 3
    rows = [{"passage_id": f"p{n}", "doc_id": f"d{n % 60}", "text": text, **blank} for n, text in enumerate(texts)]
    return written(Passages, rows)


@pytest.fixture(scope="module")
def queries(written) -> Artifact[Queries]:
    draw = random.Random(2)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 6))) for _ in range(30)]
    return written(Queries, [{"query_id": f"q{n}", "text": text} for n, text in enumerate(texts)])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Checkpoint]:
    folder = tmp_path_factory.mktemp("mixture")
    retriever.save(tiny_retriever("mixture"), folder)
    save_tokenizer(folder)
    return Artifact("train", "mixture", folder)


@pytest.fixture(scope="module")
def vectors(run_stage, passages: Artifact[Passages], checkpoint: Artifact[Checkpoint]) -> Artifact[Vectors]:
    return run_stage(
        encode, passages=passages, checkpoint=checkpoint, settings=Encoding(query_max_tokens=8, passage_max_tokens=24)
    )


@pytest.mark.parametrize("view", ENGINES)
@pytest.mark.parametrize("documents", [5, 60])
def test_exhaustive_settings_give_the_lists_of_exact_search(
    run_stage, passages, queries, checkpoint, vectors, view: str, documents: int
) -> None:
    if view == "lexical":
        pytest.importorskip("seismic", reason="pyseismic-lsr has no wheel for this machine")

    def run(settings: EngineSettings):
        built = run_stage(index, passages=passages, vectors=vectors, settings=settings)
        assert (float(describe(built.path)["bytes_per_passage"]) > 0) == (settings.engine != "exact")
        reranking = Search(view=view, documents=documents)
        return read_table(
            run_stage(
                search,
                index=built,
                vectors=vectors,
                queries=queries,
                checkpoint=checkpoint,
                passages=passages,
                settings=reranking,
            ),
            Run,
        )

    exact, approximate = run(Exact(engine="exact")), run(ENGINES[view])
    if view == "lexical":  # exact search also lists passages that share no word piece with the query
        exact = exact.filter(pc.greater(exact["score"], 0))
    assert len(exact) >= 150
    assert approximate == exact
