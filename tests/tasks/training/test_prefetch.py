"""Batches made ahead are those of their steps, in their order; one at a time is made ahead, by another thread."""

import threading
from typing import Any

import pytest

from tasks.training.prefetch import prefetch


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("steps", [range(3, 7), range(3, 4), range(3, 3)])
def test_each_step_has_its_batch(ahead: bool, steps: range) -> None:
    built: list[int] = []

    def batch_of(step: int) -> Any:
        built.append(step)
        return f"batch {step}"

    assert list(prefetch(batch_of, steps, ahead=ahead)) == [f"batch {step}" for step in steps]
    assert built == list(steps)


def test_the_next_is_made_while_one_is_worked_with_and_no_more() -> None:
    making = {step: threading.Event() for step in range(4)}

    def batch_of(step: int) -> Any:
        making[step].set()
        return threading.current_thread()

    coming = prefetch(batch_of, range(4), ahead=True)

    assert next(coming) is not threading.main_thread()
    assert making[1].wait(10)
    assert not making[2].is_set()
    coming.close()
    assert not making[2].is_set()


@pytest.mark.parametrize("ahead", [False, True])
def test_what_cannot_be_made_is_told_at_its_step(ahead: bool) -> None:
    def batch_of(step: int) -> Any:
        if step == 1:
            raise ValueError("no batch")
        return step

    coming = prefetch(batch_of, range(3), ahead=ahead)

    assert next(coming) == 0
    with pytest.raises(ValueError, match="no batch"):
        next(coming)
