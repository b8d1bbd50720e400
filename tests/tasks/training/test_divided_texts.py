"""The texts of a step are tokenised by all processes together, with the result of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch.distributed as dist

from tasks.training.divided_texts import DividedTexts
from tests.tasks.forked_processes import fork_server

ROWS = [7, 0, 3, 3, 11, 1, 4]


def token_ids(rows: Sequence[int]) -> list[list[int]]:
    """Return `row` tokens of each row; row 0 has none."""
    return [[30_000 + row + number for number in range(row)] for row in rows]


def tokenise_together(rank: int, size: int, folder: Path) -> None:
    """Check the result of a process, and write which rows it has tokenised."""
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    tokenised: list[int] = []

    def tokenise(rows: Sequence[int]) -> list[list[int]]:
        tokenised.extend(rows)
        return token_ids(rows)

    texts = DividedTexts()
    assert texts.tokenised(ROWS, tokenise) == token_ids(ROWS)
    (folder / f"{rank}.rows").write_text(" ".join(map(str, tokenised)))
    assert texts.tokenised([5], token_ids) == token_ids([5])
    dist.destroy_process_group()


def test_one_process_tokenises_all_rows() -> None:
    assert DividedTexts().tokenised(ROWS, token_ids) == token_ids(ROWS)


@pytest.mark.slow
def test_processes_tokenise_disjoint_rows_and_have_the_ids_of_all(tmp_path: Path) -> None:
    size, context = 3, fork_server()
    processes = [context.Process(target=tokenise_together, args=(rank, size, tmp_path)) for rank in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(900)

    assert [process.exitcode for process in processes] == [0] * size
    rows = [[int(row) for row in (tmp_path / f"{rank}.rows").read_text().split()] for rank in range(size)]
    assert [row for share in rows for row in share] == ROWS
    assert max(map(len, rows)) == -(-len(ROWS) // size)
