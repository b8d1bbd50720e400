"""End a run whose worker has died.

A worker reads what its runs write. Once it has died, each line that a run writes fails, wherever in the code that is,
so that the run would end Crashed or Failed, with an error that says nothing of the worker.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import threading
from logging import Logger, LoggerAdapter
from typing import Any

OUTPUTS = (1, 2)  # the descriptors of standard output and standard error
DIED = "The worker of this run has died, so the run ends. Retry resumes it."


def end_with_worker(flow: Any, flow_run: Any, state: Any) -> None:  # as Prefect calls its hooks
    """Have SIGTERM end this process when its worker dies: a training saves a checkpoint, and the run is Crashed.

    A process that no worker has started, or that does not write to its worker, is left alone.
    """
    from prefect.logging.loggers import flow_run_logger

    pipes = [number for number in OUTPUTS if stat.S_ISFIFO(os.fstat(number).st_mode)]
    if pipes and "PREFECT__FLOW_RUN_ID" in os.environ:
        logger = flow_run_logger(flow_run, flow)  # a hook is called outside the context of its run
        threading.Thread(target=_end_after, args=(pipes, logger), daemon=True, name="worker death").start()


def _end_after(pipes: list[int], logger: Logger | LoggerAdapter[Any]) -> None:
    """Wait until nobody reads one of the pipes. Then write to nowhere, and end this process."""
    closed = select.poll()
    for pipe in pipes:
        closed.register(pipe, 0)  # no event but POLLERR, which is always reported
    closed.poll()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for pipe in pipes:
        os.dup2(nowhere, pipe)
    os.close(nowhere)
    logger.warning(DIED)
    os.kill(os.getpid(), signal.SIGTERM)
