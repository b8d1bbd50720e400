"""YAML for recipes, suites, studies and `--set`: mappings, lists, texts, numbers, booleans and null.

Time and memory are bounded for any text: its size, its depth and the expansion of its aliases are limited. Other types
of YAML (dates, bytes, sets, objects) are refused if a tag names them; a date without a tag is read as text.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError
from yaml.reader import Reader, ReaderError

from storage.errors import UserError, quoted

MOST_BYTES = 262_144  # 18 times the largest shipped file; PyYAML reads about 100 kB a second
MOST_LEVELS = 40
MOST_VALUES = 50_000  # after aliases are expanded
INT64 = range(-(2**63), 2**63)
MOST_DIGITS = 400  # more than any number needs; Python takes seconds for much longer ones

TAG = "tag:yaml.org,2002:"
NUMBERS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
TYPES = ("null", "bool", "int", "float", "str", "seq", "map")


def read_yaml(path: Path) -> Any:
    """Return the value of a file. Raises UserError with file and line where it is not valid YAML of these types."""
    if (size := path.stat().st_size) > MOST_BYTES:
        raise UserError(f"{path}: {size:,} bytes; expected at most {MOST_BYTES:,}")
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise UserError(f"{path} line {line}: not UTF-8 (byte 0x{error.object[error.start]:02x})") from None
    except Invalid as error:
        raise UserError(f"{path} line {error.line}: not valid YAML: {error}") from None


def parse_yaml(text: str) -> Any:
    """Return the value of a text, in which each alias is a copy. Raises Invalid."""
    try:
        loader = _Loader(text)
    except ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise Invalid(f"the character {quoted(chr(error.character))} is not allowed", line) from None
    try:
        return _unshared(loader.get_single_data())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or loader.get_mark()
        raise Invalid(error.problem or error.context or "cannot be read", mark.line + 1) from None
    except (ValueError, OverflowError) as error:  # of PyYAML's scanner, for an escape or a version that is out of range
        raise Invalid(str(error), loader.get_mark().line + 1) from None
    finally:
        loader.dispose()


class Invalid(ValueError):
    """The text is not YAML, or exceeds the limits."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(" ".join(problem.split()))
        self.line = line
        """From 1."""


class _Loader(yaml.SafeLoader):
    """Counts levels and values while nodes are composed, so that a text that exceeds the limits is refused early."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level, self._count = 0, 0
        self._sizes: dict[str, int] = {}
        """Number of values below each anchor, with aliases expanded; 0 until its end is read."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        before, anchor = self._count, getattr(event, "anchor", "")
        if isinstance(event, yaml.AliasEvent):
            size = self._sizes.get(anchor)
            if size == 0:
                raise _at(event, f"the alias *{anchor} is inside the value that it names")
            self._count += size or 0  # PyYAML itself refuses an undefined alias
        else:
            self._count += 1
            if anchor:
                self._sizes[anchor] = 0
        if self._count > MOST_VALUES:
            raise _at(event, f"aliases and values expand to more than {MOST_VALUES:,} values")
        if self._level >= MOST_LEVELS:
            raise _at(event, f"nested deeper than {MOST_LEVELS} levels")
        self._level += 1
        node = super().compose_node(parent, index)
        self._level -= 1
        if anchor and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._count - before
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuse keys that are not text, and duplicate keys, of which YAML would silently keep the last."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _at(key, "a list or a section cannot be a key; expected a name")
            if key.tag not in (f"{TAG}str", f"{TAG}merge"):
                raise _at(key, f"the key {quoted(key.value)} is not text; put it in quotes")
            if key.value in seen:
                raise _at(key, f"the key {quoted(key.value)} is a duplicate")
            seen.add(key.value)
        return node


def _at(node: Any, problem: str) -> ConstructorError:
    return ConstructorError(None, None, problem, node.start_mark)


def _number(kind: str) -> Callable[[_Loader, yaml.ScalarNode], Any]:
    """Return the function that reads a scalar of one of NUMBERS."""
    construct = getattr(yaml.SafeLoader, f"construct_yaml_{kind}")

    def constructed(loader: _Loader, node: yaml.ScalarNode) -> Any:
        text = loader.construct_scalar(node)
        if kind == "int" and len(text) > MOST_DIGITS:
            raise _at(node, f"{quoted(text)} does not fit 64 bits")
        if len(text) > MOST_DIGITS and kind == "float":
            raise _at(node, f"{quoted(text)} is not a number of at most {MOST_DIGITS} characters")
        try:
            value = construct(loader, node)
        except (ValueError, KeyError, IndexError, OverflowError):
            raise _at(node, f"{quoted(text)} is not {NUMBERS[kind]}") from None
        if kind == "int" and value not in INT64:
            raise _at(node, f"{quoted(text)} does not fit 64 bits")
        return value

    return constructed


def _text(loader: _Loader, node: yaml.ScalarNode) -> str:
    text = str(loader.construct_scalar(node))
    if wrong := Reader.NON_PRINTABLE.search(text):  # an escape can spell a character that YAML does not allow literally
        raise _at(node, f"a text with the character {quoted(wrong[0])}; remove it")
    return text


def _refused(loader: _Loader, node: yaml.Node) -> Any:
    tag = node.tag.replace(TAG, "!!")
    raise _at(
        node, f"the tag {quoted(tag)} is not supported; expected one of {', '.join(f'!!{name}' for name in TYPES)}"
    )


_Loader.yaml_constructors = {
    f"{TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{TAG}{kind}"] for kind in ("null", "seq", "map")
}
for _kind in NUMBERS:
    _Loader.add_constructor(f"{TAG}{_kind}", _number(_kind))
_Loader.add_constructor(f"{TAG}str", _text)
_Loader.add_constructor(None, _refused)
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(TAG) in (*TYPES, "merge")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _unshared(value: Any) -> Any:
    """Return a deep copy in which no two parts are one object, so that a value behind an alias can be changed once."""
    if isinstance(value, dict):
        return {key: _unshared(inner) for key, inner in value.items()}
    return [_unshared(inner) for inner in value] if isinstance(value, list) else value
