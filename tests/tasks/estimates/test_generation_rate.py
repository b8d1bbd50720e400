"""How long a generator takes is extrapolated from a few tokens that the sampler writes."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from storage.store.store import Store
from tasks.estimates import generation_rate
from tasks.estimates.generation import T5_BASE, T5Shape
from tasks.pseudo_queries.generate_queries import Generation
from tasks.pseudo_queries.generators import sampler
from tasks.session import Session, session

SHAPE = T5Shape(
    encoder_layers=2, decoder_layers=3, width=32, attention=128, inner=80, gated=True, vocabulary=50
)  # fmt: skip
SETTINGS = Generation(
    queries_per_passage=3, prefix="", input_max_tokens=24, top_k=10, top_p=0.9, max_new_tokens=12, seed=1,
    shard_passages=10, batch_tokens=240,
)  # fmt: skip


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of rates that are kept."""
    monkeypatch.setenv("PRETRIEVE_CACHE", str(tmp_path))
    monkeypatch.setattr("os.getloadavg", lambda: (0.0, 0.0, 0.0))
    return tmp_path / "generation_rates.json"


def rate(shape: T5Shape = SHAPE, settings: Generation = SETTINGS) -> generation_rate.GenerationRate | None:
    with session(Session(Store(Path("store")))):
        return generation_rate.generation_rate(shape, settings)


def test_the_rate_is_that_of_complete_queries_in_batches_of_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, batches = [0.0], list[tuple[int, ...]]()

    def of_known_speed(generator: Any, ids: Sequence[list[int]], numbers: Tensor, settings: Generation) -> None:
        batches.append((len(ids), len(ids[0]), *numbers.shape[1:]))
        clock[0] += 5.0 + 0.5 * (numbers.shape[2] - 1)

    monkeypatch.setattr(sampler, "sample", of_known_speed)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    measured = rate()

    assert measured
    assert measured.seconds == pytest.approx((5.0 + 0.5 * 11) / 10)
    assert batches[1:] == [(10, 24, 3, 1), (10, 24, 3, 1 + generation_rate.TOKENS)]


def test_the_model_that_is_measured_has_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = list[Any]()
    complete = sampler.sample

    def noted(generator: Any, *given: Any) -> list[list[list[int]]]:
        measured.append((generator.model.config, sum(one.numel() for one in generator.model.parameters())))
        texts = complete(generator, *given)
        assert {len(query) for queries in texts for query in queries} == {given[1].shape[2]}  # none ends early
        return texts

    monkeypatch.setattr(sampler, "sample", noted)
    assert rate()
    config, parameters = measured[0]
    assert (config.num_layers, config.num_decoder_layers, config.d_model, config.d_ff) == (2, 3, 32, 80)
    assert config.num_heads * config.d_kv == 128
    # The layer norms and the positions are left out of the count, and these sizes are small.
    assert parameters == pytest.approx(SHAPE.parameters - SHAPE.width * SHAPE.vocabulary, rel=0.05)


def test_a_rate_is_kept_for_its_shape_and_settings(kept: Path) -> None:
    first = rate()

    assert rate() == first
    assert rate(dataclasses.replace(SHAPE, decoder_layers=1)) != first
    assert rate(settings=SETTINGS.model_copy(update={"queries_per_passage": 1})) != first
    assert len(json.loads(kept.read_text())) == 3


def test_a_model_that_may_not_fit_in_memory_is_not_measured(kept: Path) -> None:
    eleven_billion = dataclasses.replace(
        T5_BASE, encoder_layers=24, decoder_layers=24, width=1024, attention=16_384, inner=65_536
    )

    assert eleven_billion.parameters == pytest.approx(11.3e9, rel=0.01)
    assert rate(eleven_billion) is None
    assert not kept.exists()
