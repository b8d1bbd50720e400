"""Pseudo-queries without a generator: salient sentences are removed from their documents, except for one in ten."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter

from tasks.pseudo_queries.salient_sentences import DocumentFrequencies, cloze, one_part, parts, words

SALT = "Salt melts ice on cold roads in winter."
TEXT = (
    "The city has many people who live there today. " + SALT + " Ice on roads melts with salt and more salt still. "
    "People often talk about it there."
)
OTHERS = ["The city has many people there today.", "People often talk about the city.", "It is there that people live."]


def most_central(sentences: list[str], texts: list[str]) -> str:
    """The definition, slowly: the sentence whose tf-idf vector has the largest cosine with the document's."""
    counts = Counter(word for text in texts for word in set(words(text)))
    idf = {word: math.log((len(texts) + 1) / (number + 1)) + 1 for word, number in counts.items()}

    def vector(text: str) -> dict[str, float]:
        return {word: words(text).count(word) * idf[word] for word in set(words(text))}

    def cosine(one: dict[str, float], other: dict[str, float]) -> float:
        product = sum(one[word] * other.get(word, 0) for word in one)
        return product / math.sqrt(sum(x * x for x in one.values()) * sum(x * x for x in other.values()))

    return max(sentences, key=lambda sentence: cosine(vector(sentence), vector(" ".join(sentences))))


def names(kept: bool) -> list[str]:
    """Ids of documents that keep their sentences, or not."""
    frequencies = DocumentFrequencies([TEXT, *OTHERS])
    return [f"d{n}" for n in range(200) if (cloze(f"d{n}", "Roads", TEXT, frequencies).text == TEXT) is kept]


def test_the_query_is_the_sentence_nearest_to_the_centroid_and_is_removed_with_the_title() -> None:
    frequencies = DocumentFrequencies([TEXT, *OTHERS])
    sentences = [f"{part}." for part in TEXT.rstrip(".").split(". ")]

    gaps = cloze(names(kept=False)[0], "Roads", TEXT, frequencies)

    expected = most_central(sentences, [TEXT, *OTHERS])
    assert gaps.queries == ["Roads", expected]
    assert expected not in gaps.text
    assert gaps.title == ""
    assert sorted(words(gaps.text) + words(expected)) == sorted(words(TEXT))


def test_one_document_in_ten_keeps_what_it_is_asked_for() -> None:
    share = len(names(kept=True)) / 200

    assert 0.04 < share < 0.17
    kept = cloze(names(kept=True)[0], "Roads", TEXT, DocumentFrequencies([TEXT, *OTHERS]))
    assert kept.title == "Roads"
    assert kept.queries[0] == "Roads"


def test_a_short_document_loses_only_its_title_and_an_empty_one_has_no_query() -> None:
    frequencies = DocumentFrequencies([SALT])
    name = names(kept=False)[0]

    short = cloze(name, "Roads", SALT, frequencies)
    assert (short.text, short.queries) == (SALT, ["Roads"])
    assert cloze(name, "", SALT, frequencies).queries == []
    assert cloze(name, "Roads", "  ", frequencies).queries == []


def test_scripts_without_blanks_count_by_characters() -> None:
    assert words("河の水 Río-123") == ["河", "の", "水", "río", "123"]
    text = "冬の道路では塩が氷を溶かす。" * 3 + "塩は道路の氷を溶かすために使われる。"
    assert cloze(names(kept=False)[0], "", text, DocumentFrequencies([text]), "ja").queries


def test_a_query_is_cut_into_consecutive_parts_of_about_eight_words() -> None:
    for number in range(1, 50):
        query = ", ".join(f"w{n}" for n in range(number)) + "."
        cut = parts(query)
        assert [word for part in cut for word in words(part)] == words(query)
        lengths = [len(words(part)) for part in cut]
        assert max(lengths) - min(lengths) <= 1
        assert len(cut) == 1 or 6 <= min(lengths) <= max(lengths) <= 11
        assert all(part in query for part in cut)
    assert parts("what melts ice?") == ["what melts ice?"]
    assert parts("?") == ["?"]


def test_one_part_is_always_the_same_and_not_always_the_first() -> None:
    queries = [" ".join(f"w{n}x{k}" for k in range(24)) for n in range(60)]
    places = [parts(query).index(one_part(query)) for query in queries]
    assert places == [parts(query).index(one_part(query)) for query in queries]
    assert min(places.count(place) for place in range(3)) > 8


def test_no_part_begins_or_ends_within_a_word() -> None:
    english = (
        "The rules for the patient's family aren't valid in state-of-the-art rooms of 12.5 square metres, he said."
    )
    accents = unicodedata.normalize(
        "NFD", "Les résumés de l'élite sont des résumés que les gens lisent le soir à la maison"
    )
    hindi = " ".join(["\u092f\u0939 \u0915\u093f\u092f\u093e \u091c\u093e\u0924\u093e \u0939\u0948"] * 4)
    for text in (english, accents, hindi):
        assert len(parts(text)) == 2
        assert " ".join(parts(text)) == text
    thai = "\u0e19\u0e49\u0e33\u0e17\u0e35\u0e48" * 8
    assert "".join(parts(thai)) == thai
    assert not any(unicodedata.category(part[0]).startswith("M") for part in parts(thai))
