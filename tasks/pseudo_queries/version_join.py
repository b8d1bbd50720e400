"""Joining two versions of a corpus by hashes alone, in arrays of NumPy: passages by id and text, queries by words."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BEFORE, AFTER = 0, 1
PASSAGE = [("side", "u1"), ("id", "u8"), ("text", "u8"), ("place", "i8")]
SEEN = [("side", "u1"), ("id", "u8"), ("known", "u1"), ("place", "i8")]
QUERY = [
    ("side", "u1"), ("text", "u8"), ("query", "u8"), ("rank", "i4"), ("generator", "i4"), ("kept", "u1"),
    ("place", "i8"),
]  # fmt: skip
OTHERWISE, TEXT, BOTH = 0, 1, 2  # what is known of a passage on the other side: not its text, its text, its id with it

Records = NDArray[Any]
Places = NDArray[np.intp]


def seen(passages: Records) -> Records:
    """What the other side knows of each passage; all with one text are in the array."""
    found = np.zeros(len(passages), SEEN)
    for name in ("side", "id", "place"):
        found[name] = passages[name]
    whole = mixed(passages["id"], passages["text"])
    for own, other in sides(passages):
        by_text = np.isin(passages["text"][own], passages["text"][other])
        found["known"][own] = np.where(np.isin(whole[own], whole[other]), BOTH, np.where(by_text, TEXT, OTHERWISE))
    return found


def passage_fates(passages: Records) -> tuple[dict[str, int], dict[str, Records]]:
    """How many passages are same, moved, changed, new and removed, and the records of the last three.

    All with one id are in the array. A changed passage's record before and that after stand in the same order.
    """
    by_side = {side: passages[passages["side"] == side] for side in (BEFORE, AFTER)}
    before, after = ({each: records[records["known"] == each] for each in (OTHERWISE, TEXT, BOTH)}
                     for records in by_side.values())  # fmt: skip
    old, new = before[OTHERWISE], after[OTHERWISE]
    _, old_changed, new_changed = np.intersect1d(old["id"], new["id"], return_indices=True)
    records = {
        "changed": np.concatenate([old[old_changed], new[new_changed]]),
        "removed": np.delete(old, old_changed),
        "new": np.delete(new, new_changed),
    }
    counts = {"same": len(after[BOTH]), "moved": len(after[TEXT]), "changed": len(new_changed)}
    return counts | {"new": len(records["new"]), "removed": len(records["removed"])}, records


def query_fates(queries: Records) -> dict[str, tuple[Records, Records]]:
    """The records before and after of queries that are kept, rewritten, dropped (none after) and made (none before).

    All for one text are in the array. A kept query has the same text, generator and words, whatever its rank; one that
    is rewritten the same text, generator and rank. Of equal ones as many are kept as both sides have.
    """
    before, after = (queries[queries["side"] == side] for side in (BEFORE, AFTER))
    found = {}
    for kind, last in (("kept", "query"), ("rewritten", "rank")):
        old, new = matched(*(mixed(each["text"], each["generator"], each[last]) for each in (before, after)))
        found[kind] = before[old], after[new]
        before, after = np.delete(before, old), np.delete(after, new)
    return found | {"dropped": (before, after[:0]), "made": (before[:0], after)}


def matched(old: Records, new: Records) -> tuple[Places, Places]:
    """Places of equal hashes in both, each used once; of several equal ones the first with the first."""
    _, first, second = np.intersect1d(mixed(old, _occurrence(old)), mixed(new, _occurrence(new)), return_indices=True)
    return first, second


def _occurrence(values: Records) -> Records:
    """For each value how often it has come before."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]])) if len(values) else np.empty(0, int)
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.repeat(starts, np.diff(np.append(starts, len(values))))
    return found


def mixed(*columns: Records) -> Records:
    """One 64-bit hash of several numbers (the finaliser of SplitMix64, once for each)."""
    found = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        found = (found + np.uint64(0x9E3779B97F4A7C15)) ^ column.astype(np.uint64)
        found = (found ^ (found >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        found = (found ^ (found >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        found ^= found >> np.uint64(31)
    return found


def sides(records: Records) -> list[tuple[Places, Places]]:
    """Where each side's records are and where the other's."""
    before, after = (np.flatnonzero(records["side"] == side) for side in (BEFORE, AFTER))
    return [(before, after), (after, before)]
