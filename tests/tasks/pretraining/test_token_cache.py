"""Texts tokenised once: the batches of a pre-training are those of one that tokenises at each step."""

from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, pre_tokenizers

from models.row_random import RowRandom
from models.tokens import Tokenizer
from storage.artifact import Artifact
from storage.rows import read_table, write_rows
from storage.tables import Checkpoint, Pairs
from tasks.pretraining import token_cache
from tasks.pretraining.pretrain import PretrainingBatches, choose_contexts
from tasks.pretraining.token_cache import TokenCache, tokenised
from tasks.runtime import distributed
from tasks.runtime.work_folder import TOKENS
from tasks.training.epochs import rows_of_step
from tests.tasks.pretraining.test_pretrain import settings
from tests.tiny import SPECIALS, WORDS, save_tokenizer, tiny_tokenizer

ROWS = 23


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of 5 rows, of some batches each."""
    monkeypatch.setattr(token_cache, "ROWS_PER_FILE", 5)
    monkeypatch.setattr(token_cache, "CHARACTERS_AT_A_TIME", 300)


@pytest.fixture
def pairs(tmp_path: Path) -> Artifact[Pairs]:
    """In two files: texts of 1 to 30 words, one of none; contexts of both kinds, of one, or of the other."""
    random = np.random.default_rng(5)

    def words(most: int) -> str:
        return " ".join(random.choice([*WORDS, "rivers", "unheard-of", "."], size=random.integers(1, most)))

    rows = [
        {
            "passage_id": f"p{n}", "text": words(30) if n != 7 else "",
            "queries": [words(5) for _ in range(n % 3)],
            "passages": [words(20) for _ in range(random.integers(3) if n % 3 else 2)],
        }
        for n in range(ROWS)
    ]  # fmt: skip
    folder = tmp_path / "pairs"
    write_rows(folder, Pairs, rows[:9], "part-00000")
    write_rows(folder, Pairs, rows[9:], "part-00001")
    return Artifact("pairs", "key", folder)


@pytest.fixture
def start(tmp_path: Path) -> Artifact[Checkpoint]:
    (tmp_path / "start").mkdir()
    save_tokenizer(tmp_path / "start")
    return Artifact("start", "key", tmp_path / "start")


@pytest.mark.parametrize("mix", ["step", "example", None])
@pytest.mark.parametrize("reads", ["texts", "pairs"])
def test_batches_are_those_of_tokenising_at_each_step(
    reads: str, mix: str | None, pairs: Artifact[Pairs], start: Artifact[Checkpoint], tmp_path: Path
) -> None:
    wanted = settings(mix=mix).model_copy(update={"objective": SimpleNamespace(reads=reads)})
    batches, tokenizer = PretrainingBatches.read(tmp_path, pairs, None, start, wanted), tiny_tokenizer()
    table = read_table(pairs, Pairs)

    assert len(batches.cache) == ROWS
    for step in range(12):
        raw, random = batches.sample(step)
        expected_random = RowRandom(wanted.seed, step)
        rows = table.take(rows_of_step(step, wanted.batch, ROWS, wanted.seed)).to_pydict()
        assert [ids.tolist() for ids in raw.texts] == tokenizer.token_ids(rows["text"])
        contexts = []
        if reads != "texts":
            lists = rows["queries"], rows["passages"]
            counts = (np.array([len(texts) for texts in column]) for column in lists)
            columns, numbers = choose_contexts(*counts, mix, expected_random)
            chosen = enumerate(zip(columns, numbers, strict=True))
            contexts = [lists[column][row][number] for row, (column, number) in chosen]
        assert [ids.tolist() for ids in raw.contexts] == tokenizer.token_ids(contexts)
        assert (random.bits(8, 3) == expected_random.bits(8, 3)).all()


@pytest.mark.parametrize("mix", ["step", "example"])
def test_some_rows_of_a_step_are_those_of_all(
    mix: str, pairs: Artifact[Pairs], start: Artifact[Checkpoint], tmp_path: Path
) -> None:
    batches = PretrainingBatches.read(tmp_path, pairs, None, start, settings(mix=mix))
    reopened = pickle_and_load(batches)

    for step in range(6):
        complete = batches.rows(step, 0, 8)
        for first, last in ((0, 3), (3, 5), (5, 8)):
            part, expected = reopened.rows(step, first, last), complete.rows(first, last)
            for name in ("text", "context"):
                tokens, all_tokens = getattr(part, name), getattr(expected, name)
                width = tokens.ids.shape[1]
                assert torch.equal(tokens.ids, all_tokens.ids[:, :width])
                assert not all_tokens.mask[:, width:].any()
                labels = getattr(part, f"{name}_labels")
                assert torch.equal(labels, getattr(expected, f"{name}_labels")[:, :width])


def pickle_and_load(batches: PretrainingBatches) -> PretrainingBatches:
    """Return the batches as a spawned worker gets them."""
    loaded: PretrainingBatches = ForkingPickler.loads(ForkingPickler.dumps(batches))
    return loaded


def all_of(cache: TokenCache) -> list[Any]:
    texts = [ids.tolist() for ids in cache.texts(range(ROWS))]
    contexts = [
        [cache.contexts(column, [row], np.array([number]))[0].tolist() for number in range(count)]
        for column in ("queries", "passages")
        for row, count in enumerate(cache.num_contexts(column, range(ROWS)).tolist())
    ]
    return [texts, contexts]


def test_what_is_whole_is_not_made_again(
    pairs: Artifact[Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tokenised(tmp_path / "whole", pairs, tiny_tokenizer(), contexts=True)
    tokenizer, requests = tiny_tokenizer(), []
    pieces = tokenizer.token_ids

    def breaking(texts: list[str]) -> list[list[int]]:
        requests.append(texts)
        if len(requests) == 30:
            raise KeyboardInterrupt
        return pieces(texts)

    folder = tmp_path / "killed" / TOKENS
    monkeypatch.setattr(tokenizer, "token_ids", breaking)
    with pytest.raises(KeyboardInterrupt):
        tokenised(tmp_path / "killed", pairs, tokenizer, contexts=True)
    times = {path: path.stat().st_mtime_ns for path in folder.glob("0*.arrow")}
    (folder / ".000000000020-000000000023.arrow.7-0.tmp").write_bytes(b"of a run that was killed")
    monkeypatch.setattr(tokenizer, "token_ids", pieces)
    again = tokenised(tmp_path / "killed", pairs, tokenizer, contexts=True)

    assert 0 < len(times) < 5 == len(list(folder.glob("0*.arrow")))
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert all_of(again) == all_of(whole)


def test_processes_share_the_work(pairs: Artifact[Pairs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = tokenised(tmp_path / "alone", pairs, tiny_tokenizer(), contexts=True)
    here, counts = tmp_path / "together", []

    def second() -> None:
        """What the other process does while the first waits."""
        counts.append(len(list((here / TOKENS).glob("0*.arrow"))))
        if len(counts) == 1:
            monkeypatch.setattr(distributed, "rank", lambda: 1)
            tokenised(here, pairs, tiny_tokenizer(), contexts=True)

    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "barrier", second)
    first = tokenised(here, pairs, tiny_tokenizer(), contexts=True)

    assert counts == [2, 5]
    assert all_of(first) == all_of(alone)


def test_numbers_are_as_wide_as_the_vocabulary_asks(pairs: Artifact[Pairs], tmp_path: Path) -> None:
    words = [*SPECIALS, *(f"w{number}" for number in range(2**16)), *WORDS]
    fast = FastTokenizer(models.WordPiece({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    wide = Tokenizer(fast)

    cache = tokenised(tmp_path / "wide", pairs, wide, contexts=False)
    narrow = tokenised(tmp_path / "narrow", pairs, tiny_tokenizer(), contexts=False)

    texts = read_table(pairs, Pairs, ["text"])["text"].to_pylist()
    assert [ids.tolist() for ids in cache.texts(range(ROWS))] == wide.token_ids(texts)
    assert [part.texts([0])[0].dtype for part in (cache, narrow)] == [np.uint32, np.uint16]
