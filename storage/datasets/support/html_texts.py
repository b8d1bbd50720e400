"""The title and the text of an HTML page, by lxml. Scripts, styles, forms, navigation and footers are left out.

A form that has most of a page's text is kept without its fields: some servers write one around every page.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage.errors import UserError

LEFT_OUT = ("script", "style", "noscript", "template", "svg", "nav", "footer", "iframe", "object")
FIELDS = ("input", "select", "button", "textarea")
BLOCKS = frozenset(
    ("address", "article", "blockquote", "br", "dd", "div", "dl", "dt", "figcaption", "footer", "form", "h1", "h2",
     "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre", "section", "table", "td", "th",
     "tr", "ul")
)  # fmt: skip


def read_page(file: Path) -> tuple[str, str]:
    """Return the title of a page, or "" without one, and its text, a line for each block.

    A first h1 that is the title is no part of the text.
    """
    from lxml import etree, html

    content = file.read_bytes()
    if not content.strip():
        return "", ""
    try:
        page = html.document_fromstring(content, parser=html.HTMLParser(encoding=_encoding(content)))
    except (etree.ParserError, ValueError) as error:
        raise UserError(f"{file}: not a page of HTML ({error}); fix or remove the file") from None
    title = " ".join((page.findtext(".//title") or "").split())
    body = page.find("body")
    parts: list[str] = []
    for element in () if body is None else body.iter():
        if element.tag in BLOCKS:
            element.text = f"\n{element.text or ''}"
            element.tail = f"\n{element.tail or ''}"
    # Only now: the text after a block that is left out has its line end.
    etree.strip_elements(page, etree.Comment, etree.ProcessingInstruction, *LEFT_OUT, with_tail=False)
    if body is not None:
        _leave_out_forms(body)
        heading = body.find(".//h1")
        if heading is not None and " ".join(heading.text_content().split()) == title:
            heading.drop_tree()
        parts = [" ".join(line.split()) for line in "".join(body.itertext()).split("\n")]
    return title, "\n".join(part for part in parts if part)


def _leave_out_forms(body: Any) -> None:
    """Remove the forms of a page, but of one that has more than half of the page's characters only the fields."""
    forms = list(body.iter("form"))
    for form in forms:
        for field in list(form.iter(*FIELDS)):
            if field.find(".//h2") is None and field.find(".//h3") is None:  # a heading that opens its part of a page
                field.tail = f" {field.tail or ''}"
                field.drop_tree()
    half = _num_characters(body) / 2
    for form in [form for form in forms if _num_characters(form) <= half]:
        form.drop_tree()


def _num_characters(element: Any) -> int:
    return sum(map(len, element.text_content().split()))


def _encoding(content: bytes) -> str | None:
    """Return UTF-8 where the bytes are; else None, for the encoding that the page declares."""
    try:
        content.decode()
    except UnicodeDecodeError:
        return None
    return "utf-8"
