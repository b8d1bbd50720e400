"""The title and the text of a Markdown file, without front matter, fences of code blocks and targets of links."""

from __future__ import annotations

import re

# The first line has to be a key: without one, --- is a rule between paragraphs.
FRONT_MATTER = re.compile(r"---[ \t]*\n+(?=---|[\w\"'.-]+[ \t]*:)((?:.*\n)*?)---[ \t]*(?:\n|\Z)")
TITLE = re.compile(r"^title[ \t]*:[ \t]*(?![>|])(\S.*)$", re.IGNORECASE | re.MULTILINE)  # >, | begin a block of lines
TARGET = r"""\((?:<[^<>\n]*>|(?:[^\s()<]|\([^\s()]*\))*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)"""
MARKS = re.compile(
    r"^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)?(?P<fence>`{3,}|~{3,})[^`\n]*(?:\n|\Z)"
    r"(?P<block>(?s:.*?))(?:^[ \t>]*(?P=fence)[`~]*[ \t]*(?:\n|\Z)|\Z)"
    r"|(?P<code>`[^`\n]+`)"
    rf"|!?\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]{TARGET}",
    re.MULTILINE,
)


def read_markdown(text: str) -> tuple[str, str]:
    """Return the title of a Markdown text, from its front matter or its first heading, or "", and the rest of it."""
    title = ""
    if front := FRONT_MATTER.match(text):
        text = text[front.end() :].lstrip("\n")
        if match := TITLE.search(front[1]):
            title = _unquoted(match[1].strip())
    first, _, rest = text.partition("\n")
    if first.startswith("# ") and (heading := _unmarked(first.removeprefix("# ")).strip()) == (title or heading):
        title, text = heading, rest
    return title, _unmarked(text.strip("\n")).strip("\n")


def _unquoted(value: str) -> str:
    quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
    return value[1:-1].strip() if quoted else value


def _unmarked(text: str) -> str:
    """Return a text with the texts of links in place of the links, and without the fences of code, which is kept."""
    return MARKS.sub(_content, text)


def _content(mark: re.Match[str]) -> str:
    if mark["text"] is not None:
        return _unmarked(mark["text"])
    code: str = mark["code"] or mark["block"]
    return code
