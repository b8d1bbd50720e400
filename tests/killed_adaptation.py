"""`python -m tests.killed_adaptation FOLDER START N`: an adaptation that is killed before its N-th rename.

Every result appears by one rename of a file or a folder, so these are the moments at which the disk can be in different
states. N may be more than there are: then the adaptation ends, and FOLDER/renames has how many there were.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.adapt import recipes
from flows.adapt.request import Request
from flows.adapt.run import adapt
from tests.warm import cache_compiled_kernels

renames = 0


def killing(rename: Callable[..., None], last: int) -> Callable[..., None]:
    """Return the function with a count of its calls, of which that number is the end of this process."""

    def counted(*arguments: Any, **options: Any) -> None:
        global renames
        renames += 1
        if renames == last:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments, **options)

    return counted


def request_of(folder: Path, start: str | None = None, size: str | None = "100 steps") -> Request:
    """Return the request for the texts and judgements in a folder, with the start there or another."""
    judgements = folder / "judged.tsv"
    return Request(
        folder / "texts.jsonl", folder / "out", start or str(folder / "start"), judgements=judgements, size=size
    )  # fmt: skip


def main(folder: Path, start: str, last: int) -> None:
    """Adapt, or die, with one thread as the other adaptations of tests."""
    cache_compiled_kernels()
    recipes.MOST_THREADS = 1
    os.rename, os.replace = (killing(rename, last) for rename in (os.rename, os.replace))
    adapt(request_of(folder, start), folder / "store", lambda line: None, with_server=False)
    (folder / "renames").write_text(str(renames))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
