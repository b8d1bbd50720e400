"""Near duplicates among many queries: pairs whose sets of words have a Jaccard similarity of at least a threshold.

Prefix filtering (Bayardo, Ma and Srikant, WWW 2007; Xiao et al., WWW 2008): with the words of every set ordered from
the rarest to the most frequent, two similar sets share a word among the first few of each. Joined are those first
words only, in a database that spills to disk. Pairs are then verified, so that all of them are similar.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from fractions import Fraction

from storage.external.database import Database

COMPARED = 1000  # queries that share one of their rarest words; later ones are compared with that many first ones

# A pair's set with fewer words (with equal numbers the first) is `small`. Its shared words are at least 2t/(1+t) of its
# own and t of the other's, so that they share a word of the first size - least + 1, the prefix, of each.
STATEMENTS = """
    CREATE TABLE members AS SELECT id, len(words) AS size, unnest(words) AS word FROM sets;
    CREATE TABLE frequencies AS SELECT word, count(*) AS frequency FROM members GROUP BY word;
    CREATE TABLE ranked AS SELECT id, size, word,
        row_number() OVER (PARTITION BY id ORDER BY frequency, word) AS position
    FROM members JOIN frequencies USING (word);
    CREATE TABLE large AS SELECT id, size, word FROM ranked WHERE position <= size - ({p} * size + {q} - 1) // {q} + 1;
    CREATE TABLE small AS SELECT id, size, word FROM ranked
    WHERE position <= size - (2 * {p} * size + {p} + {q} - 1) // ({p} + {q}) + 1
    QUALIFY row_number() OVER (PARTITION BY word, size ORDER BY id) <= {compared};
    CREATE TABLE candidates AS
    SELECT DISTINCT least(small.id, large.id) AS earlier, greatest(small.id, large.id) AS later
    FROM small JOIN large USING (word)
    WHERE (small.size, small.id) < (large.size, large.id) AND {q} * small.size >= {p} * large.size;
    CREATE TABLE with_earlier AS SELECT earlier, later, words AS earlier_words
    FROM candidates JOIN sets ON sets.id = earlier;
    CREATE TABLE verified AS SELECT earlier, later, len(list_intersect(earlier_words, words)) AS shared,
        len(earlier_words) + len(words) AS sizes
    FROM with_earlier JOIN sets ON sets.id = later;
    """
SIMILAR = "SELECT earlier, later FROM verified WHERE {q} * shared >= {p} * (sizes - shared) ORDER BY later, earlier"
TABLES = ("members", "frequencies", "ranked", "large", "small", "candidates", "with_earlier", "verified")


def similar_pairs(database: Database, similarity: float) -> Iterator[tuple[int, int]]:
    """Yield the pairs (earlier id, later id) of similar rows of the table `sets`, ordered by the later one.

    Rows of `sets` are distinct sets, as lists without repetitions. Complete unless more than `COMPARED` sets of one
    size have a word among their rarest: of these only the first are compared with all others.
    """
    threshold = Fraction(str(similarity))
    numbers = {"p": threshold.numerator, "q": threshold.denominator, "compared": COMPARED}
    for statement in STATEMENTS.format(**numbers).split(";")[:-1]:
        database.execute(statement)
    for row in database.rows(SIMILAR.format(**numbers)):
        yield row["earlier"], row["later"]
    for table in TABLES:
        database.execute(f"DROP TABLE {table}")


def is_similar(first: frozenset[str], second: frozenset[str], similarity: float) -> bool:
    """Return whether the Jaccard similarity of two sets is at least `similarity`, without rounding."""
    shared = len(first & second)
    return bool(shared >= Fraction(str(similarity)) * (len(first) + len(second) - shared))


def later_duplicates(pairs: Iterable[tuple[int, int]], size: int) -> Iterator[int]:
    """Yield the ids, below `size`, that are similar to an earlier one that is not a duplicate itself.

    Pairs come by the later id. Memory is one byte for each id.
    """
    duplicates = bytearray(size)
    for earlier, later in pairs:
        if not duplicates[later] and not duplicates[earlier]:
            duplicates[later] = 1
            yield later
