"""Texts of users are printed as they are: Rich reads no markup in them, and nothing acts on the terminal."""

from __future__ import annotations

import builtins
import json
import re
from pathlib import Path

import pytest

from flows.recipe.shipped import find_recipe
from flows.terminal import unwrapped
from storage.rows import write_rows
from storage.settings import Settings
from storage.store.store import Store
from storage.tables import Checkpoint, Passages
from tasks.retrieval.encode import Encoding, encode
from tasks.stage import stage
from tests import finished_runs
from tests.flows.test_search import given_retriever
from tests.in_process import ACTS, pretrieve

ODD = "[/] [bold] a[/b]c :smile: \\[x] [red]é [@click=app.bell()]x[/] [link=http://a b]"
ESCAPES, SHOWN = "\x1b[31mred \x9b2J \u202eback", "␛[31mred ⟨U+009B⟩2J ⟨U+202E⟩back"


class Named(Settings):
    """What a stage may have been given."""

    name: str


@stage(version=1, table=Checkpoint)
def initialise(out: Path, *, settings: Named) -> None:
    """A checkpoint without weights."""
    (out / "config.json").write_text("{}")


@stage(version=1, table=Passages)
def split_corpus(out: Path, *, settings: Named) -> None:
    """One passage with the text."""
    write_rows(out, Passages, [{
        "passage_id": "p1", "doc_id": "d", "title": settings.name, "text": f"word {settings.name}",
        "start": 0, "end": 1, "num_tokens": 1,
    }])  # fmt: skip


def printed(*arguments: str) -> str:
    """What a command prints that ends well, in one line."""
    ended = pretrieve(*arguments)
    assert ended.code == 0, ended.err
    assert not ACTS.search(ended.out + ended.err)
    return re.sub(r"\s+", " ", ended.out)


def test_a_notebook_gets_lines_in_its_streams(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rich would show each line as an output of its own where `get_ipython` is that of a kernel."""
    kernel = type("ZMQInteractiveShell", (), {})
    monkeypatch.setattr(builtins, "get_ipython", kernel, raising=False)

    unwrapped(stderr=True).print("stage 1")

    assert capsys.readouterr().err == "stage 1\n"


def test_plan_shows_a_title_and_a_name_as_they_are(tmp_path: Path) -> None:
    name = ODD.replace("/", "-")
    file = tmp_path / f"{name}.yaml"
    text = find_recipe("quickstart").read_text()
    file.write_text(re.sub("(?m)^title: .*$", lambda _: f"title: {json.dumps(ODD)}", text))

    assert f"{ODD} ({name})" in printed("plan", str(file), "--store", str(tmp_path / name))


@pytest.mark.parametrize(("odd", "shown"), [(ODD, ODD), (ESCAPES, SHOWN)])
def test_a_stores_commands_show_settings_and_paths_as_they_are(
    tmp_path: Path, store: Store, odd: str, shown: str
) -> None:
    artifact, name = initialise(settings=Named(name=odd)), odd.replace("/", "-")
    where = ["--store", str(store.root)]

    assert shown[:20] in printed("show", artifact.key, *where)  # the rest is wrapped
    assert shown.replace("/", "-") in printed("export", artifact.key, str(tmp_path / name), *where)
    (other := tmp_path / f"store {name}").mkdir()
    store.root.rename(other / "store")
    for command in (["verify"], ["gc"], ["queries", "list"]):
        assert shown.replace("/", "-")[:20] in printed(*command, "--store", str(other / "store"))


@pytest.mark.parametrize(("odd", "shown"), [(ODD, ODD), (ESCAPES, SHOWN)])
def test_search_shows_passages_as_they_are(store: Store, odd: str, shown: str) -> None:
    passages, retriever = split_corpus(settings=Named(name=odd)), given_retriever()
    built = encode(
        passages=passages, checkpoint=retriever, settings=Encoding(query_max_tokens=8, passage_max_tokens=12)
    )

    assert shown[:12] in printed("search", built.key, "word", "--store", str(store.root))


@pytest.mark.parametrize("odd", [ODD, ESCAPES])
def test_titles_of_finished_runs_are_shown_as_they_are(store: Store, odd: str) -> None:
    finished_runs.run(store, "one", title=odd)
    finished_runs.run(store, "two", seed=2, title=odd, dataset={"reader": odd})

    assert "MRR@10" in printed("compare", "one", "two", "--store", str(store.root))
