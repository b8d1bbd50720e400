"""Adaptations of tests use one thread: their models are tiny, and several tests share the cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from flows.adapt import recipes


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipes, "MOST_THREADS", 1)
        yield
