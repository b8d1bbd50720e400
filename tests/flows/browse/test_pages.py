"""The pages of `pretrieve browse`, as a browser gets them from a server."""

from __future__ import annotations

import html
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request

from flows.browse.application import Pages
from flows.browse.contents import Contents, DocumentQueries
from flows.browse.loading import contents_of
from flows.browse.searches import Searches
from storage.errors import DamagedArtifact, UserError
from storage.store.store import Store
from storage.tables import Positives, Qrels
from tasks.session import Execution, Session, session
from tests.browsed_run import MARKUP, NAME, TEXTS, TOKEN, finished, served

pytestmark = pytest.mark.slow  # Java and a server


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("browse") / "store")
    store.mark()
    with session(Session(store, Execution(workers=1, threads=1, device="cpu"))):
        finished(store)
    return store


@pytest.fixture(scope="module")
def site(store: Store) -> Iterator[httpx.Client]:
    with served(store) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def words(answer: httpx.Response) -> str:
    """Return the text of a page, without its markup."""
    body = answer.text.partition("<body>")[2]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


def columns(answer: httpx.Response) -> list[list[str]]:
    """Return the ids of the passages of each column."""
    parts = re.split(r'<section id="results-\d"', answer.text)[1:]
    return [re.findall(r"Passage (\S+) and its queries", part) for part in parts]


def test_the_newest_run_has_a_first_page_with_its_systems_and_wins(site: httpx.Client) -> None:
    page = site.get("")

    assert page.status_code == 200
    text = words(page)
    for expected in ("retriever_1 against bm25", "three views", "Words & their documents", "MRR@10 of retriever_1"):
        assert expected in text
    assert "Clearest losses of retriever_1" in text


def test_a_question_has_both_systems_with_scores_by_view_and_terms(site: httpx.Client) -> None:
    page = site.get("search", params={"q": "river painter zeppelin", "a": "retriever_1", "b": "bm25"})

    assert page.status_code == 200
    dense, lexical = columns(page)
    assert len(dense) == len(TEXTS)
    assert set(lexical) == {f"d{n}#0" for n, text in enumerate(TEXTS) if {"river", "painter"} & set(text.split())}
    for view in ("sum of all", "dense", "lexical", "late interaction", "BM25"):
        assert f"<dt>{view}</dt>" in page.text, view
    chips = re.findall(r'Contributions to BM25">(.*?)</ul>', page.text)
    assert len(chips) == len(lexical)
    assert "river" in chips[0]
    assert not any("zeppelin" in chip for chip in chips)
    assert "<mark>river</mark>" in page.text
    opened, searched = page.text.index("opening retriever_1"), page.text.index('class="answer')
    assert opened < searched


def test_the_model_is_opened_once(site: httpx.Client) -> None:
    pages = [site.get("search", params={"q": "castle", "a": "retriever_1", "b": "retriever_1"}) for _ in range(2)]

    assert "opening" not in pages[1].text
    assert len(columns(pages[1])) == 1


def test_a_query_of_the_run_has_its_evaluated_rankings_and_relevant_documents(site: httpx.Client) -> None:
    page = site.get("search", params={"query": "q4", "a": "hybrid", "b": "bm25"})

    text = words(page)
    assert "bm25 rank 1" in text
    assert page.text.count('<span class="here">relevant</span>') == 2
    assert columns(page)[1][0] == "d4#0"
    hybrid = page.text.partition('<section id="results-2"')[0]
    assert "<dt>BM25</dt>" in hybrid
    assert "<dt>retriever_1</dt>" in hybrid


def test_a_fusion_answers_no_free_question_and_the_other_system_does(site: httpx.Client) -> None:
    page = site.get("search", params={"q": "river", "a": "hybrid", "b": "bm25"})

    assert "hybrid ranks only the run's own queries (combines bm25, retriever_1)" in words(page)
    assert columns(page)[1]


def test_queries_are_listed_by_wins_or_losses_and_filtered(site: httpx.Client) -> None:
    def differences(**parameters: str) -> list[float]:
        page = site.get("queries", params={"a": "retriever_1", "b": "bm25", **parameters})
        return [float(value.replace("−", "-")) for value in re.findall(r'data-name="difference">([^<]+)<', page.text)]

    wins, losses = differences(), differences(order="losses")
    assert len(wins) == 5
    assert wins == sorted(wins, reverse=True)
    assert losses == sorted(losses)
    assert len(differences(find=TEXTS[4].split()[0].upper())) == 1
    assert "No query contains" in words(site.get("queries", params={"find": "zeppelin"}))


def test_a_training_query_has_its_positive_and_negatives(site: httpx.Client) -> None:
    listed = site.get("training")
    page = site.get("negatives", params={"query": "q0"})

    assert re.findall(r"query=(q\d+)", listed.text) == ["q0", "q1", "q2", "q3"]
    text = words(page)
    assert "1 positive" in text
    assert re.search(r"[12] hard negatives?", text)
    assert "Passage d0#0" in text
    assert "rank" in text


def test_a_passage_has_its_pseudo_queries_and_the_queries_that_use_it(site: httpx.Client) -> None:
    trained = words(site.get("passage", params={"id": "d0#0"}))
    judged = words(site.get("passage", params={"id": "d4#0"}))

    assert f"where is the {TEXTS[0].split()[0]} <u>" in trained
    assert "nonsense" in trained
    assert "dropped: round trip; BM25 does not find the passage" in trained
    assert "Queries that have this passage as a positive" in trained
    assert "Queries to which it is relevant" in judged


def test_a_passage_has_the_queries_of_its_document_in_an_adaptation_without_a_generator(store: Store) -> None:
    """They are queries of titles and sentences; only where there are none, the page says that there is no generator."""
    run = contents_of(NAME, store.root)
    (training,), (collection,) = run.trainings.values(), run.collections
    assert collection.queries
    assert collection.qrels
    contents = replace(run, pseudo_queries=[], document_queries=[
        DocumentQueries("train", training.queries, training.positives, Positives),
        DocumentQueries("heldout", collection.queries, collection.qrels, Qrels),
    ])  # fmt: skip

    def section(number: int, contents: Contents = contents) -> str:
        request = Request({"type": "http", "query_string": f"id=d{number}%230".encode()})
        with closing(Searches(store)) as searches:
            page = bytes(Pages(contents, searches, "/token").passage(request).body).decode()
        return page.partition('<section aria-labelledby="h-pseudo">')[2].partition("</section>")[0]

    without, split = "This run has no generator", {0: "trained with", 5: "held out"}
    for number in (0, 5):
        first, _, third = TEXTS[number].split()
        text = f"{first} {third}" + (" &lt;i&gt;&amp;" if number == 5 else "")
        assert re.findall("<li.*</li>", section(number)) == [
            f'<li class="kept"><bdi>{text}</bdi><small>{split[number]}</small></li>'
        ]
        assert without not in section(number)
    trained_only = replace(contents, document_queries=contents.document_queries[:1])
    assert without in section(5, trained_only)
    assert "None were generated" not in section(5, trained_only)


@pytest.mark.parametrize(
    "path",
    ["", "search?q=garden <script>", "search?query=q5", "queries", "queries?find=<script>", "passage?id=d5%230",
     "negatives?query=q1", "training?find=<script>"],
)  # fmt: skip
def test_every_text_is_escaped_and_no_page_asks_another_server(site: httpx.Client, path: str) -> None:
    page = site.get(path)

    assert page.status_code == 200
    for markup in ("<script", "<u>", "<i>&", "<b>Title</b>"):
        assert markup not in page.text, markup
    assert not re.search(r'(src|href|action)="(?!/the-token/|#)', page.text)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert page.headers["referrer-policy"] == "no-referrer"
    assert f"A run {MARKUP}" in words(page)


@pytest.mark.parametrize(
    ("path", "code", "expected"),
    [
        ("search?q=%20", 400, "the search box is empty"),
        ("search", 400, "the search box is empty"),
        ("passage?id=d99%230", 404, "passage 'd99#0'"),
        ("search?query=q99", 404, "query 'q99'"),
        ("negatives?query=q4", 404, "no round has trained"),
        ("search?q=x&a=bm26", 404, "did you mean bm25?"),
        ("queries?in=nowhere", 404, "collection 'nowhere'"),
        ("training?round=none", 404, "round 'none'"),
        ("nothing/here", 404, "no such page"),
    ],
)
def test_what_is_not_there_is_said(site: httpx.Client, path: str, code: int, expected: str) -> None:
    answer = site.get(path)

    assert answer.status_code == code
    assert expected in html.unescape(answer.text)


def test_only_the_token_and_this_machine_are_served(site: httpx.Client) -> None:
    root = str(site.base_url).removesuffix(f"{TOKEN}/")

    for address in (f"{root}another/", f"{root}{TOKEN}x/queries", f"{root}{TOKEN[:-1]}/"):
        refused = httpx.get(address)
        assert refused.status_code == 403
        assert "wrong token" in refused.text
        assert TOKEN not in refused.text
        assert "retriever_1" not in refused.text
    assert httpx.get(root).status_code == 404
    elsewhere = site.get("", headers={"Host": "example.org"})
    assert elsewhere.status_code == 400
    assert "open the address that `pretrieve browse` has printed" in words(elsewhere)
    assert site.get("", headers={"Origin": "http://example.org"}).status_code == 403


def test_a_page_number_that_is_none_is_the_first(site: httpx.Client) -> None:
    for number in ("0", "-1", "x", "99", "9" * 5000):
        assert "5 queries" in words(site.get("queries", params={"page": number}))


def test_what_was_deleted_from_the_store_is_not_shown(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store.root, copy)
    for stage in ("mine", "index"):
        shutil.rmtree(copy / stage)

    contents = contents_of(NAME, copy)

    assert not contents.trainings
    assert {name for name, system in contents.collections[0].systems.items() if system.searched} == set()
    with closing(Searches(contents.store)) as searches:
        steps = searches.run(partial(searches.results, contents.collections[0], "bm25", "river", None))
        with pytest.raises(
            UserError, match=r"bm25 ranks only the run's own queries \(its index or model is not in the"
        ):
            list(steps)


def test_a_damaged_table_is_not_shown(store: Store, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    shutil.copytree(store.root, copy)
    contents_of(NAME, copy).check()
    (negatives,) = copy.glob("mine/*/part-*.parquet")
    negatives.write_bytes(negatives.read_bytes()[:-9] + b"x" * 9)

    with pytest.raises(DamagedArtifact, match="part-00000"):
        contents_of(NAME, copy).check()


def test_there_must_be_a_finished_run(tmp_path: Path, store: Store) -> None:
    with pytest.raises(UserError, match="no finished run to browse; `pretrieve reproduce quickstart` builds one"):
        contents_of(None, tmp_path)
    with pytest.raises(UserError, match=r"expected a recipe's name, a report's key or a folder.*`pretrieve adapt"):
        contents_of("nothing", store.root)
    with pytest.raises(UserError, match=r"`pretrieve reproduce cot_mae` builds it$"):
        contents_of("cot_mae", store.root)
    assert contents_of(NAME, store.root).name == NAME
