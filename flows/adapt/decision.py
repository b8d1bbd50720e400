"""Choose the model to return: the start, unless a candidate is shown to be better and nowhere measured as worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.adapt.collections import HELDOUT, JUDGED
from flows.adapt.recipes import METRIC, START
from flows.evaluate.systems import BM25
from tasks.report.page.statistics import SIGNIFICANT, probability, signed

EASY = 0.9  # above it pseudo-queries may miss a gain on real queries, as whole sentences did (docs/log.md)
NAMES = {HELDOUT: "held-out pseudo-queries", JUDGED: "your judged queries"}

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Decision:
    """The model that is returned, with the reason."""

    winner: str
    """`start`, or a candidate."""
    verdict: str
    """One sentence."""
    means: str
    """The means of BM25, the start and the returned model on the queries that decide, in words."""
    rejected: dict[str, str]
    """For each other candidate why it was not returned."""
    advice: str = ""
    """What to do where pseudo-queries may have missed a gain or overstate it, or BM25 is better; else empty."""

    @property
    def gained(self) -> bool:
        """Return whether adaptation gained anything."""
        return self.winner != START


def decide(tests: Sequence[Row], values: Mapping[tuple[str, str], float], candidates: Sequence[str]) -> Decision:
    """Choose among the start and the candidates by paired tests against the start.

    `tests` are the comparisons of `METRIC` on each set of queries, with `difference` and `p_holm` (paired t-tests,
    Holm's correction over the candidates); `values` are means by set and system. A candidate is accepted if its mean is
    not below the start's on any set and significantly above it on one. Where there are two sets, one of which suffices,
    0.05 is divided by two (Bonferroni). The accepted candidate with the highest mean is returned: on the judged
    queries, or without any on the held-out ones.
    """
    rejected, accepted = {}, []
    sets = list(dict.fromkeys(row["dataset"] for row in tests))
    for candidate in candidates:
        own = [row for row in tests if row["run"] == candidate]
        if worse := [row for row in own if row["difference"] < 0]:
            rejected[candidate] = f"worse than the start on {_where(worse[0])}"
        elif not any(row["p_holm"] * len(sets) < SIGNIFICANT for row in own):
            rejected[candidate] = f"not significantly better than the start ({_where(own[0])})"
        else:
            accepted.append(candidate)
    if not accepted:
        nothing, means = _nothing_gained(tests, sets), _means(values, sets[-1], START)
        return Decision(START, nothing, means, rejected, _advice(values, sets[-1], START))
    best = max(accepted, key=lambda name: (values[sets[-1], name], -accepted.index(name)))
    rejected |= {name: f"{best} has a higher mean" for name in accepted if name != best}
    gains = " and ".join(_where(row) for row in tests if row["run"] == best)
    verdict = f"Adaptation helped: {best} is better than the start by {gains}."
    return Decision(best, verdict, _means(values, sets[-1], best), rejected, _advice(values, sets[-1], best))


def _means(values: Mapping[tuple[str, str], float], dataset: str, winner: str) -> str:
    names = {BM25: "BM25", START: "start"} | {winner: "start (returned)" if winner == START else "returned"}
    listed = ", ".join(f"{shown} {values[dataset, name]:.3f}" for name, shown in names.items())
    return f"{METRIC} on {NAMES[dataset]}: {listed}"


def _where(row: Row) -> str:
    where = f"{METRIC} on {NAMES[row['dataset']]}"
    return f"{signed(row['difference'])} {where} (p_holm {probability(row['p_holm'])})"


def _nothing_gained(tests: Sequence[Row], sets: Sequence[str]) -> str:
    best = max((row for row in tests if row["dataset"] == sets[-1]), key=lambda row: float(row["difference"]))
    return (
        "Nothing was gained: no adapted model is significantly better than the start without being worse anywhere, so "
        f"the start is returned unchanged; the nearest, {best['run']}, differs by {_where(best)}."
    )


def _advice(values: Mapping[tuple[str, str], float], dataset: str, winner: str) -> str:
    sentences = []
    if winner == START and dataset == HELDOUT and values[dataset, START] > EASY:
        sentences.append(
            f"The start has {values[dataset, START]:.3f} of 1 on {NAMES[dataset]}, so they hardly show a gain; judged "
            "queries (--judgements) may."
        )
    if winner != START and dataset == HELDOUT:
        sentences.append("On real queries the gain may be smaller, or none; judged queries (--judgements) show it.")
    if values[dataset, BM25] > values[dataset, winner]:
        sentences.append(
            f"BM25 has a higher mean than the returned model on {NAMES[dataset]} ({values[dataset, BM25]:.3f}): "
            "compare with it, and with both fused, before you use the model."
        )
    return " ".join(sentences)
