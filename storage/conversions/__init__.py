"""Conversions of publishers' files to BEIR's layout: one module per collection, named by `Remote.conversion`.

A module has `convert(download, folder)`, which reads the publisher's file and writes the collection. Equal input gives
equal bytes, so that the key of a fetched collection is the same on all machines. Rules of selecting and splitting use
SHA-256 only, and the module's docstring states them.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path


def convert(name: str, download: Path, folder: Path) -> None:
    """Write the collection of the module `name` into a folder. Raises UserError for unexpected content."""
    import_module(f"{__name__}.{name}").convert(download, folder)
