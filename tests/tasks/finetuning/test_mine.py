"""Mining: no positive ever, whatever the miner, and never fewer negatives than its rule allows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import parts, read_rows
from storage.tables import Negatives, Passages, Positives, Run, TeacherScores
from tasks.finetuning import candidates
from tasks.finetuning.candidates import lists, remove_positives, sample
from tasks.finetuning.mine import mine
from tasks.finetuning.miners import MiningSettings
from tasks.finetuning.miners.cross_encoder import CrossEncoder
from tasks.finetuning.miners.margin import Margin
from tasks.finetuning.miners.top import Top
from tasks.finetuning.miners.union import Union

pytestmark = pytest.mark.usefixtures("on_one_thread")


def ranked(names: list[str]) -> list[dict[str, object]]:
    return [
        {"query_id": "q", "passage_id": name, "view": "dense", "rank": rank, "score": 1.0 / rank}
        for rank, name in enumerate(names, start=1)
    ]


@given(
    names=st.lists(st.integers(0, 30).map(str), unique=True, max_size=25),
    positives=st.sets(st.integers(0, 30).map(str)),
    depth=st.integers(1, 30),
    keep=st.none() | st.integers(1, 30),
)
def test_no_positive_and_as_many_as_possible(
    names: list[str], positives: set[str], depth: int, keep: int | None
) -> None:
    left = [name for name in names if name not in positives]
    found = [row["passage_id"] for row in sample(remove_positives(ranked(names), positives, depth), keep, "1 q")]
    assert set(found) <= set(left[:depth])
    assert len(found) == min(len(left), depth, keep or depth)
    assert found == sorted(found, key=names.index)  # in the order of rank, so no passage twice


def test_samples_differ_by_query_and_not_by_run() -> None:
    names = [str(n) for n in range(100)]
    one, again, other = (sample(ranked(names), 10, seed) for seed in ("1 a", "1 a", "1 b"))
    assert one == again
    assert one != other


def test_every_passage_of_every_relevant_document_leaves_before_the_cut(written, made) -> None:
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
    mined: Artifact[Negatives] = made(mine, runs=[run], positives=positives, passages=passages, settings=settings)

    # The other passages of a and b go too, before the cut to two; query r has no positive, so none are mined.
    assert [(row["query_id"], row["passage_id"], row["rank"]) for row in read_rows(mined, Negatives)] == [
        ("q", "c#0", 2),
        ("q", "d#1", 4),
    ]


def passages_of(written: Any, documents: int = 30) -> Artifact[Passages]:
    """Two passages a document: d3#0, d3#1."""
    return written(Passages, [
        {"passage_id": f"d{doc}#{n}", "doc_id": f"d{doc}", "title": "", "text": "x", "start": 0, "end": 1,
         "num_tokens": 1}
        for doc in range(documents) for n in range(2)
    ])  # fmt: skip


class World:
    """Random runs, positives and scores of a teacher, and what mining makes of them."""

    def __init__(self, written: Any, made: Any, seed: int, num_runs: int) -> None:
        self.made, random = made, np.random.default_rng(seed)
        self.passages = passages_of(written)
        names = [f"d{doc}#{n}" for doc in range(30) for n in range(2)]
        self.positives = {f"q{n}": [f"d{doc}#0" for doc in random.choice(30, size=1 + n % 3, replace=False)]
                          for n in range(0, 12, 2)}  # fmt: skip
        self.runs: list[dict[str, list[tuple[str, float]]]] = []
        for _ in range(num_runs):
            lists = {}
            for n in range(12):
                if random.random() < 0.85:
                    found = random.permutation(names)[: random.integers(1, 40)].tolist()
                    lists[f"q{n}"] = list(
                        zip(found, np.sort(random.normal(3, 2, len(found)))[::-1].tolist(), strict=True)
                    )
            self.runs.append(lists)
        self.teacher = {(query, name): float(random.normal()) for query in self.positives for name in names}
        self.tables = [
            written(Run, [
                {"query_id": query, "passage_id": name, "view": "late", "rank": rank, "score": score}
                for query, found in lists.items() for rank, (name, score) in enumerate(found, start=1)
            ])
            for lists in self.runs
        ]  # fmt: skip
        self.labels = written(Positives, [
            {"query_id": query, "passage_id": name, "doc_id": name.partition("#")[0]}
            for query, found in self.positives.items() for name in found
        ])  # fmt: skip
        self.scores = written(TeacherScores, [
            {"query_id": query, "passage_id": name, "score": score} for (query, name), score in self.teacher.items()
        ])  # fmt: skip

    def mined(self, settings: MiningSettings) -> dict[str, list[tuple[str, int, float]]]:
        scores = self.scores if settings.miner == "cross_encoder" else None
        table = self.made(
            mine, runs=self.tables, positives=self.labels, passages=self.passages, scores=scores, settings=settings
        )
        found: dict[str, list[tuple[str, int, float]]] = {}
        for row in read_rows(table, Negatives):
            found.setdefault(row["query_id"], []).append((row["passage_id"], row["rank"], row["score"]))
        return found

    def left(self, query: str, run: int, depth: int) -> list[tuple[str, int, float]]:
        """By the rules: no passage of a relevant document, then the cut."""
        relevant = {name.partition("#")[0] for name in self.positives[query]}
        rows = [(name, rank, score) for rank, (name, score) in enumerate(self.runs[run].get(query, []), start=1)]
        return [row for row in rows if row[0].partition("#")[0] not in relevant][:depth]


def near(found: list[tuple[str, int, float]]) -> list[tuple[str, int]]:
    return [(name, rank) for name, rank, _ in found]


@pytest.mark.parametrize("seed", range(3))
def test_the_union_of_several_lists(written: Any, made: Any, seed: int) -> None:
    world = World(written, made, seed, 3)

    found = world.mined(Union(miner="union", depth=7, negatives=None, seed=1))

    for query in world.positives:
        best: dict[str, int] = {}
        for run in range(3):
            for name, rank, _ in world.left(query, run, 7):
                best[name] = min(rank, best.get(name, rank))
        assert {name: rank for name, rank, _ in found.get(query, [])} == best
        ranks = [rank for _, rank, _ in found.get(query, [])]
        assert ranks == sorted(ranks)
        for name, rank, score in found.get(query, []):
            assert any((name, rank) == (row[0], row[1]) and score == pytest.approx(row[2], rel=1e-6)
                       for run in range(3) for row in world.left(query, run, 7))  # fmt: skip


@pytest.mark.parametrize(("margin", "share"), [(0.5, None), (0.0, None), (None, 0.8)])
def test_a_margin_below_the_lowest_positive(written: Any, made: Any, margin: float | None, share: float | None) -> None:
    world = World(written, made, 5, 1)

    found = world.mined(Margin(miner="margin", depth=60, negatives=None, seed=1, margin=margin, share=share))

    some = 0
    for query, wanted in world.positives.items():
        lowest = min((score for name, score in world.runs[0].get(query, []) if name in wanted), default=None)
        expected: list[tuple[str, int, float]] = []
        if lowest is not None:
            highest = lowest - margin if margin is not None else lowest * (share or 1) if lowest > 0 else lowest
            expected = [row for row in world.left(query, 0, 60) if row[2] <= highest]
            some += bool(expected)
        assert near(found.get(query, [])) == near(expected)
    assert some


def test_a_cross_encoder_has_the_last_word(written: Any, made: Any) -> None:
    world = World(written, made, 6, 1)

    found = world.mined(CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=0.4))

    for query, wanted in world.positives.items():
        highest = np.float32(min(np.float32(world.teacher[query, name]) for name in wanted)) - 0.4
        expected = [row for row in world.left(query, 0, 9) if np.float32(world.teacher[query, row[0]]) <= highest]
        assert near(found.get(query, [])) == near(expected)
    assert any(found.values())


@pytest.mark.parametrize("settings", [
    Top(miner="top", depth=12, negatives=4, seed=1), Union(miner="union", depth=12, negatives=4, seed=1),
    Margin(miner="margin", depth=12, negatives=4, seed=1, margin=0.1),
    CrossEncoder(miner="cross_encoder", depth=12, negatives=4, seed=1, margin=0.0),
])  # fmt: skip
def test_no_miner_ever_takes_a_known_positive(written: Any, made: Any, settings: MiningSettings) -> None:
    for seed in range(4):
        world = World(written, made, seed, 2 if settings.miner == "union" else 1)
        found = world.mined(settings)

        assert set(found) <= set(world.positives)
        for query, rows in found.items():
            relevant = {name.partition("#")[0] for name in world.positives[query]}
            assert not {name.partition("#")[0] for name, _, _ in rows} & relevant
            assert len({name for name, _, _ in rows}) == len(rows) <= 4


def test_what_a_miner_cannot_read(written: Any, made: Any) -> None:
    world = World(written, made, 1, 2)
    top = Top(miner="top", depth=3, negatives=None, seed=1)

    with pytest.raises(UserError, match="top reads one ranking, found 2"):
        world.mined(top)
    with pytest.raises(UserError, match="top does not read a teacher's scores"):
        made(
            mine,
            runs=world.tables[:1],
            positives=world.labels,
            passages=world.passages,
            scores=world.scores,
            settings=top,
        )
    with pytest.raises(UserError, match="cross_encoder reads a teacher's scores"):
        made(
            mine,
            runs=world.tables[:1],
            positives=world.labels,
            passages=world.passages,
            settings=CrossEncoder(miner="cross_encoder", depth=3, negatives=None, seed=1, margin=0.0),
        )


def test_a_candidate_that_the_teacher_has_not_seen(written: Any, made: Any) -> None:
    world = World(written, made, 2, 1)
    scores = written(TeacherScores, [
        {"query_id": query, "passage_id": name, "score": 0.0}
        for query, found in world.positives.items() for name in found
    ])  # fmt: skip

    with pytest.raises(UserError, match=r"no score of query 'q.*' with passage 'd.*'"):
        made(mine, runs=world.tables, positives=world.labels, passages=world.passages, scores=scores,
             settings=CrossEncoder(miner="cross_encoder", depth=3, negatives=None, seed=1, margin=0.0))  # fmt: skip


def test_runs_that_disagree_on_the_order_of_queries(written: Any, made: Any, tmp_path: Path) -> None:
    rows = [{"query_id": query, "passage_id": "d1#0", "view": "late", "rank": 1, "score": 1.0} for query in "ab"]
    labels = written(Positives, [{"query_id": "a", "passage_id": "d0#0", "doc_id": "d0"}])

    with pytest.raises(UserError, match="not in one common order"):
        made(
            mine,
            runs=[written(Run, rows), written(Run, rows[::-1])],
            positives=labels,
            passages=passages_of(written),
            settings=Union(miner="union", depth=3, negatives=None, seed=1),
        )


@pytest.mark.parametrize("given_both", [{}, {"margin": 0.1, "share": 0.5}])
def test_either_margin_or_share(given_both: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either margin or share"):
        Margin(miner="margin", depth=3, negatives=None, seed=1, **given_both)


def run_of(written: Any, queries: str) -> Artifact[Run]:
    """A passage for each of these queries, in this order."""
    return written(Run, [
        {"query_id": query, "passage_id": "d1#0", "view": "late", "rank": 1, "score": 1.0} for query in queries
    ])  # fmt: skip


def test_draws_do_not_change() -> None:
    """Published recipes depend on what is drawn for a seed and a query."""
    rows = ranked([str(n) for n in range(100)])
    assert [row["passage_id"] for row in sample(rows, 5, "1 a")] == ["31", "42", "44", "79", "98"]


def test_queries_that_only_some_runs_have(written: Any) -> None:
    """An order that agrees with all runs; where they leave it open, the first to be named comes first."""
    runs = [run_of(written, queries) for queries in ("z", "az", "bz", "cdz", "ez", "dfz")]

    found = {query: [len(rows) for rows in each] for query, each in lists(runs)}

    assert list(found) == ["a", "b", "c", "e", "d", "f", "z"]
    assert found["d"] == [0, 0, 0, 1, 0, 1]
    assert found["z"] == [1] * 6


@pytest.mark.parametrize("queries", [["aba"], ["ab", "aca"], ["ab", "bc", "ca"]])
def test_lists_that_cannot_be_read_in_step(written: Any, queries: list[str]) -> None:
    with pytest.raises(UserError, match="not in one common order"):
        list(lists([run_of(written, each) for each in queries]))


@pytest.mark.parametrize("name", ["top", "union", "margin"])
def test_there_must_be_a_ranking(written: Any, made: Any, name: str) -> None:
    known = {"top": Top, "union": Union, "margin": Margin}
    extra = {"margin": 0.0} if name == "margin" else {}
    settings = known[name](miner=name, depth=3, negatives=None, seed=1, **extra)
    with pytest.raises(UserError, match=f"{name} reads .* found 0"):
        made(mine, runs=[], positives=written(Positives, []), passages=passages_of(written), settings=settings)


@pytest.mark.parametrize(
    ("scores", "share", "kept"),
    [
        ([4.0, 3.0, 2.0, 1.0], 0.5, ["d3#0"]),  # the positive d1#0 scores 3, so at most 1.5
        ([1.0, -2.0, -3.0, -4.0], 0.5, ["d2#0", "d3#0"]),  # half of -2 is more than -2
        ([1.0, 0.0, 0.0, -1.0], 0.5, ["d2#0", "d3#0"]),
        ([4.0, 3.0, 3.0, 1.0], 1.0, ["d2#0", "d3#0"]),
    ],
)
def test_a_share_of_the_positive(
    written: Any, made: Any, scores: list[float], share: float, kept: list[str]
) -> None:  # fmt: skip
    rows = [
        {"query_id": "q", "passage_id": f"d{n}#0", "view": "late", "rank": n + 1, "score": score}
        for n, score in enumerate(scores)
    ]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, share=share)

    found = made(mine, runs=[written(Run, rows)], positives=labels, passages=passages_of(written), settings=settings)

    assert [row["passage_id"] for row in read_rows(found, Negatives)] == kept


def test_a_run_that_found_no_positive_gives_no_margin(written: Any, made: Any) -> None:
    """Another passage of the document was found, but it is not the positive."""
    rows = [{**row, "passage_id": name} for row, name in zip(ranked(["", ""]), ["d1#1", "d2#0"], strict=True)]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, margin=0.0)

    found = made(mine, runs=[written(Run, rows)], positives=labels, passages=passages_of(written), settings=settings)

    assert not list(read_rows(found, Negatives))


def test_a_positive_that_the_teacher_has_not_seen(written: Any, made: Any) -> None:
    rows = [{**row, "passage_id": name} for row, name in zip(ranked(["", ""]), ["d1#0", "d2#0"], strict=True)]
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    settings = CrossEncoder(miner="cross_encoder", depth=9, negatives=None, seed=1, margin=0.0)
    for seen in ([{"query_id": "q", "passage_id": "d2#0", "score": 1.0}], []):
        with pytest.raises(UserError, match="no score of query 'q' with passage 'd1#0'"):
            made(
                mine,
                runs=[written(Run, rows)],
                positives=labels,
                passages=passages_of(written),
                scores=written(TeacherScores, seen),
                settings=settings,
            )


def test_says_how_many_are_left(written: Any, made: Any, caplog: pytest.LogCaptureFixture) -> None:
    labels = written(Positives, [{"query_id": "q", "passage_id": "d1#0", "doc_id": "d1"}])
    names = ["d2#0", "d1#0", "d1#1", "d3#0", "d4#0"]  # of scores 1, 1/2, 1/3, 1/4, 1/5
    settings = Margin(miner="margin", depth=9, negatives=1, seed=1, margin=0.25)
    with caplog.at_level("INFO", "tasks.finetuning.mine"):
        made(
            mine, runs=[written(Run, ranked(names))], positives=labels, passages=passages_of(written), settings=settings
        )
    assert "margin: 2 of 3 passages may be negatives" in caplog.text


def test_the_margin_is_below_the_lowest_of_several_positives(written: Any, made: Any) -> None:
    names = ["d1#0", "d3#0", "d2#0", "d4#0"]  # of scores 1, 1/2, 1/3, 1/4; d1 and d2 are relevant
    labels = written(Positives, [{"query_id": "q", "passage_id": f"d{n}#0", "doc_id": f"d{n}"} for n in (1, 2)])
    settings = Margin(miner="margin", depth=9, negatives=None, seed=1, margin=0.0)

    found = made(
        mine, runs=[written(Run, ranked(names))], positives=labels, passages=passages_of(written), settings=settings
    )

    assert [row["passage_id"] for row in read_rows(found, Negatives)] == ["d4#0"]


def test_of_equal_ranks_the_union_takes_the_first_runs(written: Any, made: Any) -> None:
    lists = [[("d1#0", 9.0), ("d2#0", 8.0)], [("d3#0", 7.0), ("d2#0", 6.0)], [("d2#0", 5.0), ("d1#0", 4.0)]]
    runs = [
        written(Run, [
            {"query_id": "q", "passage_id": name, "view": "late", "rank": rank, "score": score}
            for rank, (name, score) in enumerate(each, start=1)
        ])
        for each in lists
    ]  # fmt: skip
    labels = written(Positives, [{"query_id": "q", "passage_id": "d0#0", "doc_id": "d0"}])
    for count, expected in ((2, [("d1#0", 9.0), ("d3#0", 7.0), ("d2#0", 8.0)]),
                            (3, [("d1#0", 9.0), ("d3#0", 7.0), ("d2#0", 5.0)])):  # fmt: skip
        settings = Union(miner="union", depth=9, negatives=None, seed=1)
        found = made(mine, runs=runs[:count], positives=labels, passages=passages_of(written), settings=settings)
        assert [(row["passage_id"], row["score"]) for row in read_rows(found, Negatives)] == expected


@pytest.mark.parametrize("seed", range(3))
def test_shards_of_queries_have_the_rows_of_one(
    written: Any, made: Any, seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Runs lack queries here and there, and queries lack positives."""
    world, settings = World(written, made, seed, 3), Union(miner="union", depth=7, negatives=5, seed=1)
    found = []
    for size in (1000, 5, 1):
        monkeypatch.setattr(candidates, "QUERIES_PER_PART", size)
        with caplog.at_level("INFO", "tasks.finetuning.mine"):
            found.append(
                made(mine, runs=world.tables, positives=world.labels, passages=world.passages, settings=settings)
            )

    rows = [list(read_rows(each, Negatives)) for each in found]
    assert rows[0] == rows[1] == rows[2] != []
    assert [len(parts(each.path)) for each in found] == [1, 3, 12]
    assert len({record.message for record in caplog.records}) == 1
