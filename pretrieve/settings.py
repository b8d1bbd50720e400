"""The store and the changes of a recipe, as the functions of this package take them."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from flows.command_options import DEFAULT_STORE
from flows.terminal import unwrapped
from storage.errors import UserError, quoted
from tasks.runtime.progress import drawing

Store = str | Path | None
"""The folder of the artifacts; None for $PRETRIEVE_STORE, else `artifacts` in the working folder."""


def store_folder(store: Store) -> Path:
    """Return the folder of the artifacts, as the commands choose it."""
    return Path(store) if store is not None else Path(os.environ.get("PRETRIEVE_STORE") or DEFAULT_STORE)


def as_changes(values: Mapping[str, Any] | None) -> list[str]:
    """Return changes by dotted names as the command line's `--set section.key=value`."""
    return [f"{name}={_as_yaml(value, name)}" for name, value in checked_changes(values).items()]


def checked_changes(values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return changes, none for None. Raises UserError for what is no dictionary."""
    if values is not None and not isinstance(values, Mapping):
        raise UserError(f"set: expected a dictionary such as {{'pretrain.steps': 10}}, found {quoted(values)}")
    for name in values or {}:
        if not isinstance(name, str):
            raise UserError(f"set: expected the name of a setting as a text, found {quoted(name)}")
    return values or {}


def _as_yaml(value: Any, name: str) -> str:
    """Return a value as YAML in one line; JSON is not always that: YAML reads 1e-05 as a text."""
    try:
        plain = json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError):
        raise UserError(f"{name}: expected a value of a recipe, found {quoted(value)}") from None
    return yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True).removesuffix("\n").removesuffix("\n...")


def _plain(value: Any) -> Any:
    """Return a number of NumPy as Python's, and a path as text."""
    return value.item() if isinstance(value, np.generic) else os.fspath(value)


@contextlib.contextmanager
def printing(shown: bool) -> Iterator[Callable[[str], None]]:
    """Yield what prints the lines of a run: on standard error, in a notebook below the cell.

    Unless `shown`, it prints nothing, and no progress bar is drawn in the block.
    """
    with drawing(shown):
        yield unwrapped(stderr=True).print if shown else lambda line: None
