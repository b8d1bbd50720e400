"""Count the costs of mining at MS MARCO's size by representation: FLOPs and bytes moved. Nothing is measured.

The candidate pass of exact search compares every train query with every passage on the GPU. Bytes are those of
`exact_search`: vectors that fit into half of the GPU's memory are copied once per process, others once for every shard
of queries (`tasks/retrieval/search.py`). In GPU memory every bound is written once and read twice (selection adds a
read), and a product of tokens likewise before its maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.recipe_costs import PASSAGE_PIECES, PASSAGES, QUERIES, WIDTH
from tasks.retrieval.search import PARTS_PER_SHARD, QUERIES_PER_PART, query_shards

GPU_MEMORY, BANDWIDTH = 141e9, 4.8e12  # of an H200, bytes and bytes a second, by NVIDIA's data sheet
DISK, LINK = 5e9, 50e9  # bytes a second of a disk and from the host to a GPU, assumed
DOCUMENTS = 250  # of a list from which negatives are sampled
QUERY_TOKENS, LATE_WIDTH, LEXICAL_TOKENS = 32, 128, 150  # ColBERT's; weights of a passage, assumed
FLOAT, HALF, DOUBLE, OFFSET, ID = 4, 2, 8, 8, 4  # bytes
PASSES = 3  # over bounds, or over products of tokens, in the GPU's memory


@dataclass(frozen=True)
class Mining:
    """The candidate pass of a round by one representation."""

    name: str
    stored: float
    """Bytes of a passage on disk."""
    on_device: float
    """Bytes of a passage in the GPU's memory."""
    flops: float
    """The number of all pairs of a query and a passage."""
    device_traffic: float
    """Bytes that the GPU's memory moves."""

    def __add__(self, other: Mining) -> Mining:
        return Mining(
            f"{self.name} + {other.name}", self.stored + other.stored, self.on_device + other.on_device,
            self.flops + other.flops, self.device_traffic + other.device_traffic,
        )  # fmt: skip

    def passes(self, gpus: int) -> int:
        """Return how often all passages are read from disk and copied to a GPU, over all GPUs."""
        if self.on_device * PASSAGES <= GPU_MEMORY / 2:
            return gpus
        return len(query_shards(QUERIES, DOCUMENTS, gpus))

    def hours(self, gpus: int, share: float, peak: float) -> float:
        """Return the hours of the slowest of: arithmetic, the GPU's memory, copies to the GPUs, and one disk."""
        copied = self.passes(gpus) * self.stored * PASSAGES
        seconds = (
            self.flops / (share * peak * gpus),
            self.device_traffic / (BANDWIDTH * gpus),
            copied / (LINK * gpus),
            copied / DISK,
        )
        return max(seconds) / 3600


PAIRS = QUERIES * PASSAGES
BOUNDS = PASSES * FLOAT * PAIRS
DENSE = Mining("dense", WIDTH * FLOAT, WIDTH * HALF + FLOAT, 2 * WIDTH * PAIRS, BOUNDS)
LEXICAL = Mining(
    "lexical", LEXICAL_TOKENS * (FLOAT + ID) + OFFSET, LEXICAL_TOKENS * 2 * DOUBLE + OFFSET,
    2 * LEXICAL_TOKENS * PAIRS, LEXICAL_TOKENS * DOUBLE * PAIRS + BOUNDS,
)  # fmt: skip
LATE = Mining(
    "late", PASSAGE_PIECES * (LATE_WIDTH * FLOAT + ID) + OFFSET, PASSAGE_PIECES * (LATE_WIDTH * HALF + FLOAT + ID),
    2 * LATE_WIDTH * QUERY_TOKENS * PASSAGE_PIECES * PAIRS, PASSES * FLOAT * QUERY_TOKENS * PASSAGE_PIECES * PAIRS,
)  # fmt: skip
HYBRID = DENSE + LEXICAL


def section(share: float, chip: str, peak: float) -> Iterator[str]:
    """Yield the table of mining by representation, on 1 and 8 GPUs."""
    yield (
        f"Counted, not measured: exact search of {QUERIES:,} train queries among {PASSAGES:,} passages, the candidate "
        f"pass of a round. A dense vector has {WIDTH} dimensions, a passage has {LEXICAL_TOKENS} weights of WordPiece "
        f"tokens or {PASSAGE_PIECES} vectors of {LATE_WIDTH}, a query {QUERY_TOKENS} (assumed). Hours are those of the "
        f"slowest of four: FLOPs at {share:.0%} of the peak of an {chip}; bytes in its memory at {BANDWIDTH / 1e12} "
        f"TB/s; bytes copied to each GPU at {LINK / 1e9:.0f} GB/s; and bytes from one disk at {DISK / 1e9:.0f} GB/s "
        "(the last two assumed). Vectors that fit into half of a GPU's memory are copied once a GPU, others once for "
        f"each shard of up to {PARTS_PER_SHARD * QUERIES_PER_PART:,} queries, which is also what an interruption costs "
        "a GPU. Lists are then scored in double precision on the CPU. A round can mine with an approximate index "
        "instead (`mine_approximate`). One disk feeds all GPUs: where it is the slowest, more GPUs do not help."
    )
    heads = (
        "representation",
        "on disk",
        "copied, 1 GPU",
        "copied, 8 GPUs",
        "read in GPU memory",
        "hours on 1",
        "hours on 8",
    )
    yield from ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    for mining in (DENSE, LEXICAL, LATE, HYBRID):
        size = mining.stored * PASSAGES
        moved = [f"{mining.passes(gpus) * size / 1e9:,.0f} GB" for gpus in (1, 8)]
        hours = [f"{mining.hours(gpus, share, peak):.2g}" for gpus in (1, 8)]
        name = f"{mining.name} (DupMAE)" if mining is HYBRID else mining.name
        yield (
            f"| {name} | {size / 1e9:,.0f} GB | {' | '.join(moved)} | {mining.device_traffic / 1e12:,.0f} TB "
            f"| {' | '.join(hours)} |"
        )
    yield ""
