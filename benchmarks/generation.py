"""Pseudo-query generation; baselines: Hugging Face's `generate` and CTranslate2.

All contenders generate five queries for each of the same passages with the same random T5. Its texts end after about
fifteen tokens, as queries do. The precision is float32 on a CPU and bfloat16 on a GPU.

- `generate, five calls`: batches in the order of the passages, padded, sampled five times, as scripts do;
- `generate, five sequences`: the same with `num_return_sequences`;
- `CTranslate2`, if it is installed, sorts by length and batches by tokens itself.

Each contender samples other queries, so speedups are those of a generated token. A second case generates ours in other
orders and batch sizes, and counts the queries that stay the same.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.contest import OURS, Case
from benchmarks.random_t5 import LONGEST, SHORTEST, Shape, make_model, passages
from tasks.pseudo_queries.generators.sampler import GenerationRequest, Sampler

DEVICES = ("cpu", "cuda")
QUERIES = 5
SEED = 1
ALIKE = 4.0  # standard errors by which the mean lengths of two contenders' queries may differ
TOKENS = "generated tokens"
CALLS, SEQUENCES, CTRANSLATE2 = "generate, five calls", "generate, five sequences", "CTranslate2"
TARGETS = {"cpu": {CALLS: 3.0, CTRANSLATE2: 1.0}, "cuda": {CALLS: 8.0, CTRANSLATE2: 1.3}}


@dataclass(frozen=True)
class Size:
    """The sizes of the model and of the work."""

    model: Shape
    passages: int
    """Compared with `generate`; `longer` times as many are compared with CTranslate2, which takes less time."""
    longer: int
    plain_batch: int
    """Passages of a batch of `generate`."""
    batch_tokens: int
    """Tokens of a batch of the others."""


T5_BASE = Shape(32_128, 768, 12, 12)
SIZES = {
    "cpu": Size(Shape(8_000, 256, 2, 4), passages=16, longer=3, plain_batch=16, batch_tokens=4096),
    "cuda": Size(T5_BASE, passages=256, longer=1, plain_batch=128, batch_tokens=32_768),
}


@dataclass(frozen=True)
class Settings:
    """The settings of `tasks.pseudo_queries.generate_queries.Generation`, which needs more packages."""

    batch_tokens: int
    prefix: str = ""
    prompt: str | None = None
    stop: str | None = None
    input_max_tokens: int = LONGEST
    temperature: float = 1.0
    top_k: int = 25
    top_p: float = 0.95
    max_new_tokens: int = 32
    seed: int = 1
    dtype: str = "auto"


Written = list[list[str]]


def cases(device: str, *, small: bool) -> Iterator[Case]:
    """Yield the comparisons with `generate` and with CTranslate2."""
    size, on = SIZES[device], torch.device(device)
    if small:
        size = replace(size, passages=16, longer=1)  # of fewer, one contender's queries may be twice as long by chance
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_model(folder, size.model)
        settings = Settings(size.batch_tokens, max_new_tokens=8 if small else 32)
        given = passages(size.passages, size.model)
        yield Case(
            f"{QUERIES} queries for each of {len(given)} passages of {SHORTEST} to {LONGEST} tokens, "
            f"T5 of {size.model.layers} x {size.model.width}, vocabulary of {size.model.vocabulary:,}",
            {
                OURS: partial(ours(folder, on, settings), given),
                CALLS: partial(plain(folder, on, settings, size.plain_batch, 1), given),
                SEQUENCES: partial(plain(folder, on, settings, size.plain_batch, QUERIES), given),
            },
            {CALLS: TARGETS[device][CALLS]}, compared_queries, repeats=3,
            units={"queries": QUERIES * len(given), TOKENS: num_written}, per=TOKENS,
        )  # fmt: skip
        more = passages(size.passages * size.longer, size.model)
        contenders = {OURS: partial(ours(folder, on, settings), more)}
        if importlib.util.find_spec("ctranslate2"):
            contenders[CTRANSLATE2] = partial(ctranslate2(folder, on, settings), more)
        yield Case(
            f"the same for each of {len(more)} passages", contenders,
            {name: target for name, target in TARGETS[device].items() if name in contenders},
            lambda written: {**compared_queries(written), **equal_queries(folder, on, more, settings)},
            repeats=3, units={"queries": QUERIES * len(more), TOKENS: num_written}, per=TOKENS,
        )  # fmt: skip


def compared_queries(written_by: Mapping[str, Written]) -> dict[str, Any]:
    """Return the mean length of each contender's queries; different lengths would be different work."""
    assert all(len(queries) == QUERIES for written in written_by.values() for queries in written)
    lengths = {
        name: [len(query.split()) for queries in written for query in queries] for name, written in written_by.items()
    }
    means = {name: round(statistics.mean(length), 1) for name, length in lengths.items()}
    errors = (statistics.variance(length) / len(length) for length in lengths.values())
    assert max(means.values()) < 2 * min(means.values()), means  # few queries' errors allow more
    assert max(means.values()) - min(means.values()) <= ALIKE * math.sqrt(2 * max(errors)), means
    return {"mean tokens of a query": means}


def num_written(written: Written) -> int:
    """Return the number of tokens of all queries."""
    return sum(len(query.split()) for queries in written for query in queries)


def plain(
    folder: Path, device: torch.device, settings: Settings, batch: int, sequences: int
) -> Callable[[Sequence[str]], Written]:
    """Return Hugging Face's `generate` with batches of passages and several sequences per call."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype)
    model = model.to(device).eval()

    @torch.inference_mode()
    def write(given: Sequence[str]) -> Written:
        torch.manual_seed(SEED)
        samples: Written = []
        for start in range(0, len(given), batch):
            texts = list(given[start : start + batch])
            inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False).to(device)
            queries: Written = [[] for _ in texts]
            for _ in range(QUERIES // sequences):
                ids = model.generate(
                    **inputs, do_sample=True, top_k=settings.top_k, top_p=settings.top_p,
                    num_return_sequences=sequences, max_new_tokens=settings.max_new_tokens,
                )  # fmt: skip
                for row, text in enumerate(tokenizer.batch_decode(ids[:, 1:], skip_special_tokens=True)):  # not START
                    queries[row // sequences].append(text)
            samples += queries
        return samples

    return write


def ours(folder: Path, device: torch.device, settings: Settings) -> Callable[[Sequence[str]], Written]:
    """Return this project's sampler."""
    sampler = Sampler(folder, settings, device, print)

    def write(given: Sequence[str]) -> Written:
        requests = [GenerationRequest(text, range(QUERIES), draw=0) for text in given]
        return [queries for _, queries in sorted(pair for batch in sampler(requests) for pair in batch)]

    return write


def ctranslate2(folder: Path, device: torch.device, settings: Settings) -> Callable[[Sequence[str]], Written]:
    """Return CTranslate2's sampling."""
    engine, converters = (importlib.import_module(module) for module in ("ctranslate2", "ctranslate2.converters"))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    kind = "bfloat16" if device.type == "cuda" else "float32"
    with tempfile.TemporaryDirectory() as converted:
        converters.TransformersConverter(str(folder)).convert(converted, quantization=kind, force=True)
        model = engine.Translator(converted, device=device.type, compute_type=kind, inter_threads=1, intra_threads=1)

    def write(given: Sequence[str]) -> Written:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(list(given))["input_ids"]]
        results = model.translate_batch(
            tokens, beam_size=1, num_hypotheses=QUERIES, sampling_topk=settings.top_k, sampling_topp=settings.top_p,
            max_decoding_length=settings.max_new_tokens, max_batch_size=settings.batch_tokens, batch_type="tokens",
        )  # fmt: skip
        return [[" ".join(words) for words in result.hypotheses] for result in results]

    return write


def equal_queries(
    folder: Path, device: torch.device, given: Sequence[str], settings: Settings
) -> dict[str, dict[str, float]]:
    """Return the shares of queries that stay equal when order, neighbours or batch size change."""
    shares = {}
    for dtype in ("float32", "bfloat16"):
        own = replace(settings, dtype=dtype)
        write = ours(folder, device, own)
        expected, backwards = write(given), write(given[::-1])[::-1]
        smaller, larger = (
            ours(folder, device, replace(own, batch_tokens=tokens))(given)
            for tokens in (own.batch_tokens // 8, own.batch_tokens * 8)
        )
        shares[f"equal queries in {dtype}"] = {
            "in reverse order": share(expected, backwards), "in batches of an eighth": share(expected, smaller),
            "in eight times the batch": share(expected, larger),
            "next to half of the neighbours": share(expected[::2], write(given[::2])),
        }  # fmt: skip
    return shares


def share(expected: Written, written: Written) -> float:
    """Return the share of equal queries."""
    pairs = [pair for queries in zip(expected, written, strict=True) for pair in zip(*queries, strict=True)]
    return round(sum(first == second for first, second in pairs) / len(pairs), 5)
