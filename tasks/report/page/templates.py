"""The templates of this folder, and the filters that all of them use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

FOLDER = Path(__file__).parent
MARKDOWN = ".md.j2"


def template(name: str, **filters: Callable[..., Any]) -> Template:
    """A template with these filters beside the common ones. Texts are escaped but in Markdown; a name that is not
    given is an error.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=lambda name: name is None or not name.endswith(MARKDOWN),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    common = {"three": three, "signed": signed, "percent": percent, "count": count}
    environment.filters |= common | filters
    return environment.get_template(name)


def css(*names: str) -> str:
    """Style sheets of this folder, one after the other."""
    return "".join((FOLDER / f"{name}.css").read_text() for name in names)


def three(value: float) -> str:
    """`0.756`."""
    return f"{value:.3f}"


def signed(value: float) -> str:
    """A difference with its sign: `+0.046`, `−0.012`."""
    return f"{'−' if value < 0 else '+'}{abs(value):.3f}"


def percent(share: float) -> str:
    """`12.34%`, which CSS reads."""
    return f"{100 * share:.2f}%"


def count(number: int) -> str:
    """`6,980`."""
    return f"{number:,}"
