"""The public names of `import pretrieve`, which the Python reference has to have, each with a docstring."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module

API = "pretrieve"
"""Imported by its name, since flows are a layer below it: here it is what is described, and nothing is called."""
REFERENCE = "reference/python.md"


def undocumented(page: str) -> list[str]:
    """Return what the Python reference lacks: public names, and names or methods without a docstring."""
    names = import_module(API).__all__
    absent = [f"{API}.{name} is not on the page" for name in names if f"::: {API}.{name}\n" not in page]
    bare = [f"{path} has no docstring" for path, value in _described(names) if not inspect.getdoc(value)]
    return absent + bare


def _described(names: list[str]) -> Iterator[tuple[str, object]]:
    """Yield each public name and method with its value, and its path."""
    for name in names:
        value = getattr(import_module(API), name)
        yield f"{API}.{name}", value
        if inspect.isclass(value) and value.__module__.startswith(API):
            for method, body in vars(value).items():
                if callable(body) and not method.startswith("_"):
                    yield f"{API}.{name}.{method}", body
