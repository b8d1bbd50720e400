"""Mining: no positive is ever a negative, whatever the miner, and shards do not change the result."""

from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_rows
from storage.tables import Negatives, Passages, Positives, Run
from tasks.finetuning import candidates
from tasks.finetuning.mine import mine
from tasks.finetuning.miners import MiningSettings
from tasks.finetuning.miners.cross_encoder import CrossEncoder
from tasks.finetuning.miners.margin import Margin
from tasks.finetuning.miners.top import Top
from tasks.finetuning.miners.union import Union
from tests.tasks.finetuning.mining_tables import RandomTables, passages_of, ranked

pytestmark = pytest.mark.usefixtures("on_one_thread")


def test_every_passage_of_every_relevant_document_leaves_before_the_cut(written, run_stage) -> None:
    passages = written(
        Passages,
        [
            {"passage_id": f"{doc}#{n}", "doc_id": doc, "title": "", "text": "x", "start": 0, "end": 1, "num_tokens": 1}
            for doc in ("a", "b", "c", "d")
            for n in range(2)
        ],
    )
    positives = written(Positives, [{"query_id": "q", "passage_id": f"{doc}#0", "doc_id": doc} for doc in ("a", "b")])
    order = ["a#1", "c#0", "b#0", "d#1", "b#1", "a#0", "c#1"]
    run = written(Run, ranked(order) + [{**row, "query_id": "r"} for row in ranked(["c#0"])])

    settings = Top(miner="top", depth=2, negatives=None, seed=1)
    mined: Artifact[Negatives] = run_stage(mine, runs=[run], positives=positives, passages=passages, settings=settings)

    # The other passages of a and b go too, before the cut to two; query r has no positive, so none are mined.
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in read_rows(mined, Negatives)] == [
        ("q", "c#0", 2),
        ("q", "d#1", 4),
    ]


@pytest.mark.parametrize("settings", [
    Top(miner="top", depth=12, negatives=4, seed=1), Union(miner="union", depth=12, negatives=4, seed=1),
    Margin(miner="margin", depth=12, negatives=4, seed=1, margin=0.1),
    CrossEncoder(miner="cross_encoder", depth=12, negatives=4, seed=1, margin=0.0),
])  # fmt: skip
def test_no_miner_ever_takes_a_known_positive(written: Any, run_stage: Any, settings: MiningSettings) -> None:
    for seed in range(4):
        tables = RandomTables(written, run_stage, seed, 2 if settings.miner == "union" else 1)
        results = tables.mined(settings)

        assert set(results) <= set(tables.positives)
        for query, rows in results.items():
            relevant = {name.partition("#")[0] for name in tables.positives[query]}
            assert not {name.partition("#")[0] for name, _, _ in rows} & relevant
            assert len({name for name, _, _ in rows}) == len(rows) <= 4


def test_unsuitable_inputs_of_a_miner_are_refused(written: Any, run_stage: Any) -> None:
    tables = RandomTables(written, run_stage, 1, 2)
    top = Top(miner="top", depth=3, negatives=None, seed=1)

    with pytest.raises(UserError, match="top reads one ranking, found 2"):
        tables.mined(top)
    with pytest.raises(UserError, match="top does not read a teacher's scores"):
        run_stage(
            mine,
            runs=tables.run_tables[:1],
            positives=tables.labels,
            passages=tables.passages,
            scores=tables.scores,
            settings=top,
        )
    with pytest.raises(UserError, match="cross_encoder reads a teacher's scores"):
        run_stage(
            mine,
            runs=tables.run_tables[:1],
            positives=tables.labels,
            passages=tables.passages,
            settings=CrossEncoder(miner="cross_encoder", depth=3, negatives=None, seed=1, margin=0.0),
        )


def test_runs_that_disagree_on_the_order_of_queries(written: Any, run_stage: Any, tmp_path: Path) -> None:
    rows = [{"query_id": query, "passage_id": "d1#0", "view": "late", "rank": 1, "score": 1.0} for query in "ab"]
    labels = written(Positives, [{"query_id": "a", "passage_id": "d0#0", "doc_id": "d0"}])

    with pytest.raises(UserError, match="not in one common order"):
        run_stage(
            mine,
            runs=[written(Run, rows), written(Run, rows[::-1])],
            positives=labels,
            passages=passages_of(written),
            settings=Union(miner="union", depth=3, negatives=None, seed=1),
        )


@pytest.mark.parametrize("name", ["top", "union", "margin"])
def test_there_must_be_a_ranking(written: Any, run_stage: Any, name: str) -> None:
    known = {"top": Top, "union": Union, "margin": Margin}
    extra = {"margin": 0.0} if name == "margin" else {}
    settings = known[name](miner=name, depth=3, negatives=None, seed=1, **extra)
    with pytest.raises(UserError, match=f"{name} reads .* found 0"):
        run_stage(mine, runs=[], positives=written(Positives, []), passages=passages_of(written), settings=settings)


def test_the_number_of_selected_candidates_is_printed(written: Any, run_stage: Any, printed: list[str]) -> None:
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    names = ["d2#0", "d1#0", "d1#1", "d3#0", "d4#0"]  # of scores 1, 1/2, 1/3, 1/4, 1/5
    settings = Margin(miner="margin", depth=9, negatives=1, seed=1, margin=0.25)
    run_stage(
        mine, runs=[written(Run, ranked(names))], positives=labels, passages=passages_of(written), settings=settings
    )
    assert "margin: 2 of 3 candidates (pairs of a query and a passage) may be negatives" in printed


@pytest.mark.parametrize("seed", range(3))
def test_shards_of_queries_have_the_rows_of_one(
    written: Any, run_stage: Any, seed: int, monkeypatch: pytest.MonkeyPatch, printed: list[str]
) -> None:
    """Runs lack queries here and there, and queries lack positives."""
    tables, settings = RandomTables(written, run_stage, seed, 3), Union(miner="union", depth=7, negatives=5, seed=1)
    results = []
    for size in (1000, 5, 1):
        monkeypatch.setattr(candidates, "QUERIES_PER_PART", size)
        results.append(
            run_stage(
                mine, runs=tables.run_tables, positives=tables.labels, passages=tables.passages, settings=settings
            )
        )

    rows = [list(read_rows(artifact, Negatives)) for artifact in results]
    assert rows[0] == rows[1] == rows[2] != []
    assert [len(parts(artifact.path)) for artifact in results] == [1, 3, 12]
    assert len(printed) == 3
    assert len(set(printed)) == 1
