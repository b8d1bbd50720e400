"""Which tokens of a vocabulary are kept, and what the artifact says about them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer as FastTokenizer

from storage.artifact import Artifact, Source, source_of
from storage.errors import UserError
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Documents, Vocabulary
from tasks.corpus import select_vocabulary as module
from tasks.corpus import token_counts
from tasks.corpus.select_vocabulary import VocabularySize, check, select_vocabulary
from tests import tokenizers
from tests.tiny import LETTERS, PIECES, SPECIALS, fast_tokenizer, save_tokenizer

TEXTS = ["kings and rivers", "a river, a king. river", "painting", "kings"]
REQUIRED = len(SPECIALS) + 2 * len(LETTERS) + len(".,")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Source:
    (folder := tmp_path / "tokenizer").mkdir()
    save_tokenizer(folder)
    return source_of(folder, [folder / "tokenizer.json"])


def documents(folder: Path, texts: list[str], title: str = "") -> Artifact[Documents]:
    folder.mkdir()
    write_rows(folder, Documents, (
        {"doc_id": str(number), "title": title, "text": text} for number, text in enumerate(texts)
    ))  # fmt: skip
    return Artifact("ingest_corpus", folder.name, folder)


def selected(tmp_path: Path, tokenizer: Source, tokens: int, pretraining: bool = True) -> Artifact[Vocabulary]:
    other = documents(tmp_path / "other", ["stone stone stone"], "bridge") if pretraining else None
    (out := tmp_path / f"kept-{tokens}").mkdir()
    select_vocabulary.body(
        out, documents(tmp_path / "texts", TEXTS), other, tokenizer, settings=VocabularySize(tokens=tokens)
    )
    return Artifact("select_vocabulary", out.name, out)


def test_the_most_frequent_tokens_of_both_collections_are_kept(
    store: Store, tmp_path: Path, tokenizer: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_counts, "TEXTS_PER_SHARD", 3)
    monkeypatch.setattr(token_counts, "TEXTS_PER_BATCH", 2)
    counts = Counter(
        token for text in [*TEXTS, "bridge stone stone stone"]
        for token in fast_tokenizer().encode(text, add_special_tokens=False).tokens
    )  # fmt: skip
    frequent = ["stone", "king", "river"]  # three times each; "##s", a character, is required
    assert sorted(frequent) == sorted(token for token, n in counts.items() if n == 3 and len(token) > 3)

    rows = list(read_rows(selected(tmp_path, tokenizer, REQUIRED + 3), Vocabulary))

    assert [row["original_id"] for row in rows] == sorted(row["original_id"] for row in rows)
    assert all(PIECES[row["original_id"]] == row["token"] for row in rows)
    assert {row["token"] for row in rows} >= {*SPECIALS, *LETTERS, *frequent}
    assert len(rows) == REQUIRED + 3
    assert {row["token"]: row["occurrences"] for row in rows if row["occurrences"]} == {
        token: n for token, n in counts.items() if token in {row["token"] for row in rows}
    }


def test_the_artifact_says_how_texts_are_tokenised_before_and_after(
    store: Store, tmp_path: Path, tokenizer: Source
) -> None:
    artifact = selected(tmp_path, tokenizer, REQUIRED + 1, pretraining=False)

    coverage = json.loads((artifact.path / "coverage.json").read_text())
    after = FastTokenizer.from_file(str(artifact.path / "tokenizer.json"))
    lengths = [
        sum(len(wordpiece.encode(text, add_special_tokens=False).ids) for text in TEXTS) / len(TEXTS)
        for wordpiece in (fast_tokenizer(), after)
    ]
    assert (coverage["tokens"], coverage["vocabulary"]) == (REQUIRED + 1, len(PIECES))
    assert [coverage[when]["tokens_per_text"] for when in ("before", "after")] == lengths
    assert lengths[1] > lengths[0]
    assert coverage["before"]["unknown_share"] == coverage["after"]["unknown_share"] == 0


def test_characters_of_the_documents_are_kept_and_others_are_not() -> None:
    vocabulary = {token: n for n, token in enumerate([*SPECIALS, "é", "##é", "ß", "##ß", "éé", "word"])}
    counts = module.np.zeros(len(vocabulary), module.np.int64)
    counts[vocabulary["éé"]] = 1

    kept = module.select({"model": {"vocab": vocabulary}}, counts, len(SPECIALS) + 2)

    assert kept == [*range(len(SPECIALS)), vocabulary["é"], vocabulary["##é"]]


@pytest.mark.parametrize("tokens", [1, REQUIRED - 1, len(PIECES) + 1])
def test_a_size_that_does_not_fit_is_refused(store: Store, tmp_path: Path, tokenizer: Source, tokens: int) -> None:
    message = f"backbone.vocabulary: expected {REQUIRED}, .* to {len(PIECES)}, the tokenizer's tokens, found {tokens}"

    with pytest.raises(UserError, match=message):
        check(tokens, tokenizer.path)
    with pytest.raises(UserError, match=message):
        selected(tmp_path, tokenizer, tokens)


def test_nothing_is_checked_without_a_size_or_a_tokenizer(tmp_path: Path, tokenizer: Source) -> None:
    check(None, tokenizer.path)
    check(1, tmp_path / "missing")
    check(REQUIRED, tokenizer.path)
    check(len(PIECES), tokenizer.path)


def test_a_tokenizer_with_tokens_outside_its_models_vocabulary_is_refused(tokenizer: Source) -> None:
    file = tokenizer.path / "tokenizer.json"
    content = json.loads(file.read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "content": "[new]", "id": len(PIECES)})
    file.write_text(json.dumps(content))

    with pytest.raises(UserError, match=r"outside its model's vocabulary: \[new\]"):
        check(REQUIRED, tokenizer.path)


@pytest.mark.parametrize(("kind", "name"), [("byte_level", "BPE"), ("sentencepiece", "Unigram")])
def test_other_tokens_than_wordpiece_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    file = tokenizers.save(tmp_path / kind, kind) / "tokenizer.json"

    with pytest.raises(UserError) as error:
        check(200, file.parent)

    assert str(error.value) == (
        f"backbone.vocabulary: {file}: expected WordPiece tokens, of which some suffice for all words, found {name}; "
        "leave the setting out"
    )
