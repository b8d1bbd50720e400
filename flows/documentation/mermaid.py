"""Mermaid diagrams as SVG, so that a page requests no script from another server."""

from __future__ import annotations

import base64
import html
from typing import Any

THEMES = {"light": "default", "dark": "dark"}
"""Mermaid's theme for each of the site's colour schemes."""


def fence(source: str, language: str, css_class: str, options: dict[str, str], md: Any, **_: Any) -> str:
    """Return the HTML of a fenced Mermaid block: the diagram drawn for light and for dark pages.

    The arguments are those with which `pymdownx.superfences` calls a formatter. Raises `ValueError` where Mermaid
    cannot read the source, so that a build with a broken diagram fails.
    """
    return "".join(
        f'<img class="diagram" alt="{html.escape(description(source))}" src="{picture(source, theme)}#only-{scheme}">'
        for scheme, theme in THEMES.items()
    )


def picture(source: str, theme: str) -> str:
    """Return the diagram as the address of an SVG that contains all of it."""
    return f"data:image/svg+xml;base64,{base64.b64encode(drawn(source, theme).encode()).decode()}"


def drawn(source: str, theme: str) -> str:
    """Return the SVG of a diagram. Raises `ValueError` where Mermaid cannot read its source."""
    from mermaidx import Diagram

    try:
        return str(Diagram(source, theme=theme).svg())
    except RuntimeError as error:
        raise ValueError(
            f"Mermaid cannot draw the diagram that begins with {source.splitlines()[:2]}: {error}"
        ) from None


def description(source: str) -> str:
    """Return a diagram's lines after the first, for readers who do not see it."""
    return "Diagram: " + "; ".join(line.strip() for line in source.splitlines()[1:] if line.strip())
