"""The Jinja templates of this folder, and the filters that they share.

Charts are SVG and CSS in templates, not matplotlib figures: they follow the reader's light or dark colours, scale with
the page, have texts that can be selected and read aloud, and their bytes depend only on their values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from tasks.report.page.glossary import kinds, metrics, tests
from tasks.report.page.statistics import signed

FOLDER = Path(__file__).parent
MARKDOWN = ".md.j2"


def template(name: str, **filters: Callable[..., Any]) -> Template:
    """Return a template with these filters and the common ones.

    Texts are escaped, except in Markdown; an undefined name raises an error.
    """
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=lambda name: name is None or not name.endswith(MARKDOWN),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    common: dict[str, Callable[..., Any]] = {
        "three": three, "signed": signed, "percent": percent, "count": count,
        "metrics_defined": metrics, "tests_defined": tests, "kinds_defined": kinds,
    }  # fmt: skip
    environment.filters |= common | filters
    return environment.get_template(name)


def css(*names: str) -> str:
    """Return style sheets of this folder, joined."""
    return "".join((FOLDER / f"{name}.css").read_text(encoding="utf-8") for name in names)


def three(value: float) -> str:
    """Format a value with three digits: `0.756`."""
    return f"{value:.3f}"


def percent(share: float) -> str:
    """Format a share for CSS: `12.34%`."""
    return f"{100 * share:.2f}%"


def count(number: int) -> str:
    """Format a count: `6,980`."""
    return f"{number:,}"
