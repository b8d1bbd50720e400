"""The command line as the storm starts it, in a process that `tests.warm` has forked.

Everything is the product's except that trainings write checkpoints more often than once a minute and leases are short.
With `STORM_PLAIN` the chain runs as on a machine without Prefect.
"""

from __future__ import annotations

import os

from tests.plain_command import without_prefect

SECONDS_BETWEEN_CHECKPOINTS, LEASE = 0.1, 10.0


def main() -> None:
    """Prepare this process, then run the command line."""
    import flows.cli
    import tasks.training.loop
    from storage.store.store import Store

    tasks.training.loop.SECONDS_BETWEEN_CHECKPOINTS = SECONDS_BETWEEN_CHECKPOINTS
    Store.__init__.__defaults__ = (LEASE,)
    if os.environ.get("STORM_PLAIN"):
        without_prefect()
    flows.cli.main()


if __name__ == "__main__":
    main()
