"""Encoding, exact search, re-ranking and generation on the simulated device: the CPU's results, and no device mixed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from storage.artifact import Source
from storage.store.store import Store
from tasks.cross_encoder.pairs import Scorer, Scoring
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler
from tasks.retrieval.encode import TextEncoder
from tasks.session import Execution, Session, session
from tests.models.retrievers.test_cross_encoder import folder_of, tiny_cross_encoder
from tests.simulated_device.tensor import traffic
from tests.tasks.pseudo_queries.generators.test_sampler import SETTINGS, WORDS
from tests.tasks.retrieval.engines.test_exact import VIEWS, exact_search, same
from tests.tasks.retrieval.test_encode import close, saved
from tests.tasks.stored import store, texts
from tests.tiny import RETRIEVERS, SPECIALS, save_t5

TILES = 3  # of 40 passages, in shards of 15
TOKEN_BYTES = 5 * 12 * (8 + 1) + 28 * 8  # ids and mask of the padded texts, and the positions of the tokens
TEXTS = ["king river", "a stone bridge, and the garden of the painter.", "", "music", "planet ocean tree letter bread"]


@contextmanager
def cpu() -> Iterator[None]:
    with session(Session(Store(Path("unused")), Execution(workers=1, threads=1, device="cpu"))):
        yield


@pytest.mark.parametrize("kind", RETRIEVERS)
@pytest.mark.usefixtures("full_precision")
def test_encoding_equals_that_of_the_cpu(kind: str, tmp_path: Path, simulated: torch.device) -> None:
    folder = saved(tmp_path, kind).path
    with cpu():
        expected = TextEncoder(folder)(TEXTS, "passage", 12)

    close(TextEncoder(folder)(TEXTS, "passage", 12), expected)


@pytest.mark.parametrize("kind", RETRIEVERS)
def test_encoding_in_bfloat16_copies_each_batch_once(
    kind: str, tmp_path: Path, simulated: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.retrieval.encode.PARTS", 1)
    encoder = TextEncoder(saved(tmp_path, kind).path)
    traffic.clear()

    encoded = encoder(TEXTS, "passage", 12)

    assert len(encoded) == len(TEXTS)
    assert traffic.to_device.total() == TOKEN_BYTES
    assert traffic.synchronisations.total() <= 10, traffic.synchronisations


@pytest.mark.parametrize(("view", "exact_match"), VIEWS)
def test_exact_search_equals_that_of_the_cpu(
    view: str, exact_match: bool, tmp_path: Path, simulated: torch.device
) -> None:
    draw = np.random.default_rng(0)
    queries, passages = (texts(draw, count, signed=True, ids=exact_match) for count in (3, 40))
    folder = store(tmp_path, passages, rows=15, exact_match=exact_match)
    with cpu():
        expected = exact_search(folder, view)(queries, 10)

    result = exact_search(folder, view)(queries, 10)

    assert same(result, expected)
    assert traffic.synchronisations.total() <= 3 * TILES + 1, traffic.synchronisations


@pytest.mark.usefixtures("full_precision")
def test_pairs_have_the_scores_of_the_cpu(tmp_path: Path, simulated: torch.device) -> None:
    teacher = Source("teacher", folder_of(tiny_cross_encoder(), tmp_path))
    pairs = [([2, 20, 21, 3, 33, 3], 4), ([2, 14, 3, 15, 16, 17, 3], 3)]
    with cpu():
        expected = Scorer(teacher, Scoring(query_max_tokens=6, max_tokens=14))(pairs, lambda number: None)

    scores = Scorer(teacher, Scoring(query_max_tokens=6, max_tokens=14))(pairs, lambda number: None)

    np.testing.assert_allclose(scores, expected, rtol=1e-5)


def test_generation_equals_that_of_the_cpu(tmp_path: Path, simulated: torch.device) -> None:
    folder = save_t5(tmp_path, [*SPECIALS, *WORDS])
    requests = [GenerationRequest(text, range(3), 0) for text in ("king of the island", "old river", "film")]
    settings = SETTINGS.model_copy(update={"dtype": "float32"})
    expected = list(Sampler(folder, settings, torch.device("cpu"), print)(requests))

    sampler = Sampler(folder, settings, simulated, print)
    traffic.clear()

    assert list(sampler(requests)) == expected
    assert traffic.synchronisations.total() <= 2 * settings.max_new_tokens + 3, traffic.synchronisations
