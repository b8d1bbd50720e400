"""What every worker process does first, so that it ends with its parent and takes no more threads than it should."""

from __future__ import annotations

import os
import signal
import threading
from multiprocessing.connection import Connection


def prepare_worker(alive: Connection, threads: int) -> None:
    """Leave Ctrl-C, SIGTERM and SIGHUP to the parent, end when the pipe closes, and tokenise with `threads` threads.

    The kernel closes the pipe of a parent that is killed.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of tokenizers
    threading.Thread(target=_end_with_parent, args=(alive,), daemon=True).start()


def _end_with_parent(alive: Connection) -> None:
    alive.poll(None)
    os._exit(1)
