"""`pretrieve queries`: versions of a corpus, brought up to date, replaced in part, and kept from the garbage."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.queries.build import BuildResult, build, next_commands, planned_corpus, record_version
from flows.queries.chain import corpus
from flows.queries.diff import show_difference
from flows.queries.export_command import export_version
from flows.queries.list import list_versions
from flows.queries.regenerate import replace
from flows.queries.stats import show_stats
from flows.queries.versions import find_version, versions_of
from flows.recipe.load import load_recipe
from flows.store.collect_garbage import collect_garbage
from flows.store.needs import report_needs
from flows.store.verify import verify_store
from storage.datasets import beir
from storage.errors import UserError
from storage.generation_cache.cache import generation_caches
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import PseudoQueries
from tasks.session import Execution, Session, session
from tests.flows.test_json_output import has_documented_fields
from tests.tiny import PIECES, WORDS, save_t5

NAME = "small/beir"
DOCUMENTS = {f"d{n}": f"{WORDS[n]} {WORDS[n + 1]}. {WORDS[n + 2]} {WORDS[n]}." for n in range(8)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random T5 that generates WordPiece tokens."""
    return save_t5(tmp_path_factory.mktemp("t5"), PIECES)


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """A folder with texts alone: no queries, no qrels."""
    (tmp_path / "collection").mkdir()
    write(tmp_path / "collection", DOCUMENTS)
    return tmp_path / "collection"


def write(collection: Path, documents: dict[str, str], title: str = "") -> None:
    lines = (json.dumps({"_id": name, "title": title, "text": text}) for name, text in documents.items())
    (collection / "corpus.jsonl").write_text("".join(f"{line}\n" for line in lines))


@pytest.fixture
def changes(collection: Path, model: Path) -> list[str]:
    return [
        f"dataset.path={collection}", f"queries.model={model}", "queries.train=null", "queries.generator=tiny",
        "queries.generate.shard_passages=3", "queries.generate.queries_per_passage=2", "contexts.pseudo_queries=2",
        "queries.quality.samples=3",
    ]  # fmt: skip


Make = Callable[..., BuildResult]


@pytest.fixture
def make(changes: list[str], store: Store) -> Make:
    """make(*more changes) -> the version that is built, in the test's store."""

    def making(*more: str) -> BuildResult:
        recipe, _ = load_recipe(NAME, [*changes, *more])
        with session(Session(store, Execution(workers=1, threads=1, device="cpu"))):
            return record_version(corpus(recipe, store), NAME, store)

    return making


def rows(result: BuildResult) -> list[dict[str, Any]]:
    return list(read_rows(result.version.queries, PseudoQueries))


@pytest.mark.slow
def test_a_corpus_is_built_brought_up_to_date_and_replaced(
    make: Make, changes: list[str], collection: Path, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    first = make()

    assert first.version.name == f"{NAME}@1"
    assert first.previous is None
    assert len(rows(first)) == len(DOCUMENTS) * 2
    assert make().version == first.version  # nothing has changed
    assert all(step.cached for step in planned_corpus(load_recipe(NAME, changes)[0], store).done.values())

    write(collection, {"new": "bread and stone", **{name: text for name, text in DOCUMENTS.items() if name != "d3"}})
    second = make()
    assert second.version.name == f"{NAME}@2"
    assert second.previous == first.version
    by_id = [
        {row["passage_id"]: row["query"] for row in rows(result) if row["rank"] == 0} for result in (first, second)
    ]
    assert {name for name in by_id[1] if by_id[0].get(name) != by_id[1][name]} == {"new#0"}
    written = json.loads((second.version.queries.path / "logs" / "written.json").read_text())
    assert (written["kept"], written["made"]) == ((len(DOCUMENTS) - 1) * 2, 2)
    assert f"compared with {NAME}@1: 14 unchanged, 2 new, 0 resampled, 2 removed" in second.summary()

    recipe, _ = load_recipe(NAME, changes)
    (tmp_path / "ids.txt").write_text("d1\n \nd5\n")
    assert replace(recipe, store, str(tmp_path / "ids.txt"), None) == "replaced: 2 passages of 2 documents, of tiny"
    again = replace(recipe, store, str(tmp_path / "ids.txt"), None)  # as of a command that was cut off
    assert again == "requested before, and in no version yet: 2 passages of 2 documents, of tiny"
    with monkeypatch.context() as cut:
        cut.setattr("flows.queries.build.note_version", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make()
    again = replace(recipe, store, str(tmp_path / "ids.txt"), None)  # nor does it resample what was generated
    assert again == "requested before, and in no version yet: 2 passages of 2 documents, of tiny"
    third = make()
    drawn = {row["doc_id"]: row["draw"] for row in rows(third)}
    assert drawn == {row["doc_id"]: int(row["doc_id"] in ("d1", "d5")) for row in rows(third)}
    assert replace(recipe, store, "all", "tiny") == "replaced: all passages, of tiny"
    assert {row["draw"] for row in rows(make())} == {1, 2}
    assert replace(recipe, store, "all", None).startswith("replaced: ")
    [ledger] = generation_caches(store.root)
    ledger.invalidation_files()[-1].unlink()

    assert [version.number for version in versions_of(NAME, store)] == [1, 2, 3, 4]
    assert find_version(NAME, store).number == 4
    assert find_version(f"{NAME}@2", store) == second.version
    assert find_version(third.version.queries.key[:8], store) == third.version
    capsys.readouterr()
    list_versions(store.root)
    assert f"{NAME}@4" in capsys.readouterr().out
    list_versions(store.root, as_json=True)
    newest = json.loads(capsys.readouterr().out)[-1]
    assert (newest["version"], newest["state"], newest["generators"]) == (f"{NAME}@4", "kept", ["tiny"])
    assert (newest["source"], newest["filter"]) == (["beir corpus"], None)
    show_stats(NAME, store.root, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    has_documented_fields("queries stats", shown)
    assert shown["passages"] == len(DOCUMENTS)
    show_difference(f"{NAME}@1", f"{NAME}@2", store.root, as_json=True)
    shown = json.loads(capsys.readouterr().out)
    has_documented_fields("queries diff", shown)
    assert (shown["queries"]["made"], shown["versions"]["before"]) == (2, f"{NAME}@1")
    for wrong, words in {f"{NAME}@9": "has versions 1 to 4", "nothing": "no versions"}.items():
        with pytest.raises(UserError, match=words):
            find_version(wrong, store)

    needed = report_needs(store).references
    assert {version.queries.reference for version in versions_of(NAME, store)} <= needed
    assert {version.quality.reference for version in versions_of(NAME, store)} <= needed
    before = ledger.files()
    collect_garbage(store.root, delete=True, older_than="0s")
    assert all(store.manifest(version.queries.stage, version.queries.key) for version in versions_of(NAME, store))
    assert ledger.files() == before
    verify_store(store.root, aside=False)
    damage(before[0])
    with pytest.raises(Exception, match="1"):
        verify_store(store.root, aside=False)
    assert f"{before[0]}: its bytes do not match the hash in its name" in capsys.readouterr().err


@pytest.mark.slow
def test_a_build_names_the_users_collection_and_ends_with_the_next_commands(
    changes: list[str], collection: Path, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    build(NAME, store.root, changes, version_name="mine")

    printed = capsys.readouterr()
    assert printed.err.startswith(f"pseudo-queries of {collection.name}: 7 stages, 0 cached")
    lines = printed.out.splitlines()
    assert Path(lines[0].removeprefix("mine@1: ")).is_dir()
    page = Path(lines[1].removeprefix("page: ")).read_text()
    assert f"<h1>Pseudo-queries of {collection.name} (mine)</h1>" in page
    assert lines[2:] == [
        f"next: pretrieve queries export mine@1 DIR --format beir --store {store.root}",
        f"      pretrieve queries stats mine@1 --store {store.root}",
    ]
    assert "--store" not in next_commands("mine@1", Path("artifacts"))


@pytest.mark.slow
def test_an_exported_corpus_has_the_titles_of_its_documents(
    make: Make, collection: Path, store: Store, tmp_path: Path
) -> None:
    write(collection, DOCUMENTS, title=WORDS[0])
    make()

    export_version(NAME, str(tmp_path / "exported"), "beir", False, store.root)

    texts = list(beir.texts(tmp_path / "exported", "corpus"))
    assert [row["title"] for row in texts] == [WORDS[0]] * len(DOCUMENTS)


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)


@pytest.mark.slow
def test_a_second_generator_and_a_filter_add_and_keep(make: Make, model: Path) -> None:
    first = make()
    settings = (
        "prefix: '', input_max_tokens: 20, top_k: 5, top_p: 1.0, max_new_tokens: 6, shard_passages: 9, batch_tokens: 99"
    )
    also = f"[{{generator: other, model: {model}, generate: {{queries_per_passage: 1, {settings}, seed: 7}}}}]"

    both = make(f"queries.also={also}")

    own = [(row["passage_id"], row["rank"], row["query"]) for row in rows(both) if row["generator"] == "tiny"]
    assert own == [(row["passage_id"], row["rank"], row["query"]) for row in rows(first)]
    assert [row["rank"] for row in rows(both) if row["generator"] == "other"] == [2] * len(DOCUMENTS)
    filtering = "{round_trip: {depth: 5}, relevance: null, cut: {round_trip: 5, relevance: null}}"
    filtered = make(f"queries.also={also}", f"queries.filter={filtering}")
    assert [row["query"] for row in rows(filtered)] == [row["query"] for row in rows(both)]
    assert {row["reason"] for row in rows(filtered)} <= {"", "empty", "round trip"}
    assert all(row["kept"] == (0 < (row["round_trip"] or 0) <= 5) for row in rows(filtered))


def test_generators_have_names_of_their_own(changes: list[str], model: Path) -> None:
    settings = (
        "queries_per_passage: 1, prefix: '', input_max_tokens: 20, top_k: 5, top_p: 1.0, max_new_tokens: 6, seed: 7"
    )
    also = f"[{{generator: tiny, model: {model}, generate: {{{settings}, shard_passages: 9, batch_tokens: 99}}}}]"

    with pytest.raises(UserError, match="expected generators of different names"):
        load_recipe(NAME, [*changes, f"queries.also={also}"])


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"generator": "tiny"}, "says whose queries --replace resamples"),
        ({"version_name": "a@b"}, "a@b: cannot name versions"),
        ({"version_name": "../b"}, "../b: cannot name versions"),
    ],
)
def test_what_cannot_be_built_is_said(more: dict[str, str], words: str, changes: list[str], store: Store) -> None:
    with pytest.raises(UserError, match=words):
        build(NAME, store.root, changes, **more)


def test_what_cannot_be_replaced_is_said(changes: list[str], store: Store, tmp_path: Path) -> None:
    recipe, _ = load_recipe(NAME, changes)
    (tmp_path / "ids.txt").write_text("d1\n")
    for what, name, words in [
        (str(tmp_path / "ids.txt"), None, "has not been split"),
        ("bucket:zz", None, "there is no such file"),
        ("all", "nobody", "expected one of the recipe's generators, 'tiny'"),
    ]:
        with pytest.raises(UserError, match=words):
            replace(recipe, store, what, name)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "queries.model=null",
            "queries: expected one of model, train, file, found none; add --set queries.model=MODEL",
        ),
        ("queries.file=x.jsonl", "found model and file; set the others to null, for example --set queries.file=null"),
        ("queries.generate.prompt=nothing", "expected a text with {passage} in it"),
        ("queries.generate.stop=x", "stop: expected null where there is no prompt"),
        ("contexts.pseudo_queries=3", "expected at most the 2 that are generated"),
        ("queries.shares=3", "queries.shares"),
        ("queries.also=[{generator: tiny, model: x, generate: null}]", "queries.also"),
    ],
)
def test_recipes_that_cannot_be_are_refused(change: str, words: str, changes: list[str]) -> None:
    with pytest.raises(UserError, match=words):
        load_recipe(NAME, [*changes, change])
