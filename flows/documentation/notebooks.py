"""The tutorials' notebooks: run them, write their outputs into them, and show them as pages of the site.

`make notebooks` runs every notebook of `docs/tutorials` in an empty folder. Cells are run as Jupyter runs them, one
after the other in one namespace; the value of a cell's last expression is its result. What a cell prints on standard
error, such as the progress of a run, is not kept.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import hashlib
import io
import json
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.recipe.shipped import PROJECT
from storage.files import write_atomically

TUTORIALS = PROJECT / "docs" / "tutorials"
PARAMETERS = "parameters"
"""The tag of the cell after which a caller may set values, as in papermill."""
STYLE = re.compile(r"<style.*?</style>\s*| border=\"1\"", re.DOTALL)

Notebook = dict[str, Any]


def read(path: Path) -> Notebook:
    """Return a notebook's content."""
    content: Notebook = json.loads(path.read_text(encoding="utf-8"))
    return content


def executed(notebook: Notebook, values: Mapping[str, Any] | None = None) -> Notebook:
    """Return a copy of a notebook with the outputs that its cells have in the working folder.

    `values` replace variables after the cell with the tag `parameters`. An error of a cell is raised.
    """
    done, namespace = copy.deepcopy(notebook), {"__name__": "__main__"}
    number = 0
    for cell in done["cells"]:
        if cell["cell_type"] != "code":
            continue
        number += 1
        cell["execution_count"] = number
        cell["outputs"] = _outputs("".join(cell["source"]), namespace, number)
        if PARAMETERS in cell["metadata"].get("tags", []):
            namespace |= values or {}
    done["metadata"]["source_sha256"] = source_hash(done)
    return done


def _outputs(source: str, namespace: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Run a cell and return what it prints, and the value of its last expression."""
    *body, last = ast.parse(source).body
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(ast.Module(body, []), f"<cell {number}>", "exec"), namespace)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"<cell {number}>", "eval"), namespace)
        else:
            exec(compile(ast.Module([last], []), f"<cell {number}>", "exec"), namespace)
    outputs: list[dict[str, Any]] = []
    if text := printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = STYLE.sub("", value._repr_html_()).splitlines(keepends=True)
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data})
    return outputs


def source_hash(notebook: Notebook) -> str:
    """Return a hash of a notebook's code, which shows whether its outputs are those of this code."""
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    return hashlib.sha256("\n\n".join(code).encode()).hexdigest()


def page(notebook: Notebook) -> str:
    """Return a notebook as Markdown, with its code and its outputs."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Mapping[str, Any]) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    return [f"```python\n{source}\n```", *map(_shown, cell["outputs"])]


def _shown(output: Mapping[str, Any]) -> str:
    data = output.get("data", {})
    if html := data.get("text/html"):
        return "".join(html)
    return f"```text\n{''.join(output.get('text') or data['text/plain']).rstrip()}\n```"


def write(path: Path) -> None:
    """Run a notebook in an empty folder and write its outputs into its file."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            done = executed(read(path))
        finally:
            os.chdir(home)
    write_atomically(path, json.dumps(done, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    import sys

    for notebook in [Path(name) for name in sys.argv[1:]] or sorted(TUTORIALS.glob("*.ipynb")):
        write(notebook.resolve())
        print(notebook.name)
