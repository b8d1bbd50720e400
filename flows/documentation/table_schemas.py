"""The reference of the tables between stages, from their Arrow schemas."""

from __future__ import annotations

import inspect

import pyarrow as pa

from flows.documentation.markdown import table
from storage import tables

INTRODUCTION = """# Tables

The tables that stages write, each with its columns. A table is a folder of Parquet files in an artifact of the
[store](../architecture.md#stages-and-artifacts); `pandas.read_parquet(FOLDER)` reads one. Artifacts that are no tables,
such as checkpoints and indexes, state the files that they consist of.
"""


def tables_page() -> str:
    """Return the page of all tables, in the order of their definition."""
    classes = [value for value in vars(tables).values() if inspect.isclass(value) and issubclass(value, tables.Table)]
    return "\n".join([INTRODUCTION, *(_section(kind) for kind in classes if kind is not tables.Table)])


def _section(kind: type[tables.Table]) -> str:
    parts = [f"## {kind.__name__}\n", f"{inspect.getdoc(kind) or ''}\n"]
    if kind.schema is None:
        parts.append(f"Files: {', '.join(f'`{pattern}`' for pattern in kind.files)}\n")
    else:
        rows = [(f"`{field.name}`", _type(field.type), "yes" if field.nullable else "") for field in kind.schema]
        parts.append(table(("column", "type", "may be null"), rows))
    return "\n".join(parts)


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    return str(kind)
