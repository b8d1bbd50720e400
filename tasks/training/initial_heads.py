"""The line of a run's log that states which heads were loaded and which were newly initialised.

A new head is random, so a training that expected a trained one would be worse without any error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tasks.runtime import distributed
from tasks.session import current_round, print_line


def log_heads(stage: str, origins: Mapping[str, str]) -> None:
    """Print by head where its weights are from; do nothing without heads, and in all processes but the first."""
    if origins and not distributed.rank():
        where = f" ({name})" if (name := current_round()) else ""
        print_line(f"{stage}{where}: {'; '.join(f'{head}: {origin}' for head, origin in origins.items())}")


def parts(names: Iterable[str]) -> str:
    """Return the modules to which parameters belong, each once: the first two parts of their names."""
    modules = (".".join(name.split(".")[:-1][:2]) or name for name in names)
    return ", ".join(dict.fromkeys(modules))
