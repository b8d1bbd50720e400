"""How fast queries are written, beside Hugging Face's `generate` and CTranslate2: `python -m benchmarks.generation`.

All write five queries for each of the same passages with the same random T5, whose texts end by themselves after some
fifteen tokens, as queries do. They take turns in one process; counted are seconds of CPU on one thread, on a GPU those
of the clock, and their median is told for 1,000 queries. "generate, five calls" is what scripts do: batches as the
passages come, padded, sampled five times over. Then passages are written for in other orders, neighbours and batch
sizes, and it is counted how many queries stay the same to the letter.

It needs PyTorch and Transformers alone; a GPU, where bfloat16 is used, and CTranslate2 are optional. Writes
`benchmarks/results/generation.json`.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing

from tasks.generators.sampling import Asked, Sampler

PASSAGES, QUERIES, SHORTEST, LONGEST = 128, 5, 12, 144  # lengths of passages in tokens
COMPARED = 400  # passages of which queries are compared
VOCABULARY, WIDTH, LAYERS, HEADS = 8_000, 256, 2, 4
PAD, END, UNKNOWN, START = range(4)
EMBEDDING, LOGITS = 0.05, 2.0  # standard deviations
END_ADVANTAGE = 5.0  # so that a query has some fifteen tokens
PLAIN_BATCH = 32  # passages
REPEATS = 5
RESULT = Path(__file__).parent / "results" / "generation.json"


@dataclass(frozen=True)
class Settings:
    """As `tasks.generate_queries.Generation`, which needs more packages."""

    prefix: str = ""
    prompt: str | None = None
    stop: str | None = None
    input_max_tokens: int = LONGEST
    temperature: float = 1.0
    top_k: int = 25
    top_p: float = 0.95
    max_new_tokens: int = 32
    seed: int = 1
    batch_tokens: int = 4096
    dtype: str = "auto"


Written = list[list[str]]


def main() -> None:
    """Measure on every device there is, and write the table."""
    devices = [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder))
        found: dict[str, Any] = {device.type: measured(Path(folder), device) for device in devices}
    found.setdefault("cuda", "not run: no GPU here")
    found["machine"] = {"cores": os.cpu_count(), "system": platform.platform(), **versions()}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def make_model(folder: Path) -> None:
    """A random T5 and its tokenizer. One dimension is the same for all words; by it the end is likelier than a word."""
    torch.manual_seed(7)
    words = Tokenizer(WordLevel({name(number): number for number in range(VOCABULARY)}, unk_token=name(UNKNOWN)))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = TemplateProcessing(single=f"$A {name(END)}", special_tokens=[(name(END), END)])
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, eos_token=name(END), pad_token=name(PAD), unk_token=name(UNKNOWN)
    ).save_pretrained(folder)
    model: Any = transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=WIDTH, d_kv=WIDTH // HEADS, num_heads=HEADS, d_ff=4 * WIDTH,
            num_layers=LAYERS, pad_token_id=PAD, eos_token_id=END, decoder_start_token_id=START,
        )
    )  # fmt: skip
    with torch.no_grad():
        words_VD = model.shared.weight
        words_VD *= EMBEDDING
        words_VD[:, 0] = 1.0
        for special, first in ((PAD, -9.0), (UNKNOWN, -9.0), (END, 1.0 + END_ADVANTAGE)):
            words_VD[special] = 0.0
            words_VD[special, 0] = first
        for parameter_name, weight in model.decoder.named_parameters():
            if parameter_name.endswith((".o.weight", ".wo.weight")):
                weight[0] = 0.0
        model.decoder.final_layer_norm.weight.fill_(LOGITS / EMBEDDING)
    model.save_pretrained(folder)


def name(number: int) -> str:
    """The word of a token."""
    return f"w{number}"


def passages(count: int) -> list[str]:
    """Random words, as many as a real passage may have."""
    random = np.random.default_rng(3)
    lengths = random.integers(SHORTEST, LONGEST, size=count)
    return [
        " ".join(name(number) for number in random.integers(START + 1, VOCABULARY, size=length - 1))
        for length in lengths
    ]


def measured(folder: Path, device: torch.device) -> dict[str, Any]:
    """The contenders' seconds on a device, and how many queries depend on their batch."""
    contenders = {
        "generate, five calls": plain(folder, device, 1),
        "generate, five sequences": plain(folder, device, QUERIES),
    }
    contenders["ours"] = ours(folder, device)
    if importlib.util.find_spec("ctranslate2"):
        contenders["CTranslate2"] = ctranslate2(folder, device)
    given = passages(PASSAGES)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    written: dict[str, Written] = {}
    for repeat in range(REPEATS + 1):  # the first warms up
        for name, write in contenders.items():
            torch.manual_seed(repeat)
            start = clock(device)
            written[name] = write(given)
            seconds[name] += [clock(device) - start] * bool(repeat)
    medians = {name: statistics.median(each) * 1000 / (PASSAGES * QUERIES) for name, each in seconds.items()}
    return {
        "seconds_per_1000_queries": {name: round(each, 3) for name, each in medians.items()},
        "times_ours_is_faster": {name: round(each / medians["ours"], 2) for name, each in medians.items()},
        "mean_tokens": {name: round(mean_length(each), 1) for name, each in written.items()},
        "equal_queries": {dtype: equality(folder, device, dtype) for dtype in ("float32", "bfloat16")},
    }


def clock(device: torch.device) -> float:
    """Seconds: of the CPU where it works, of the clock where a GPU does."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def plain(folder: Path, device: torch.device, sequences: int) -> Callable[[Sequence[str]], Written]:
    """Hugging Face's `generate`, with so many sequences at a call."""
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model: Any = transformers.T5ForConditionalGeneration.from_pretrained(folder, dtype=dtype).to(device).eval()
    settings = Settings()

    @torch.inference_mode()
    def write(given: Sequence[str]) -> Written:
        found: Written = []
        for start in range(0, len(given), PLAIN_BATCH):
            texts = list(given[start : start + PLAIN_BATCH])
            inputs = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False).to(device)
            queries: Written = [[] for _ in texts]
            for _ in range(QUERIES // sequences):
                ids = model.generate(
                    **inputs, do_sample=True, top_k=settings.top_k, top_p=settings.top_p,
                    num_return_sequences=sequences, max_new_tokens=settings.max_new_tokens,
                )  # fmt: skip
                for row, text in enumerate(tokenizer.batch_decode(ids, skip_special_tokens=True)):
                    queries[row // sequences].append(text)
            found += queries
        return found

    return write


def ours(folder: Path, device: torch.device, settings: Settings = Settings()) -> Callable[[Sequence[str]], Written]:
    """This project's sampler."""
    sampler = Sampler(folder, settings, device, print)

    def write(given: Sequence[str]) -> Written:
        asked = [Asked(text, range(QUERIES), draw=0) for text in given]
        return [queries for _, queries in sorted(pair for batch in sampler(asked) for pair in batch)]

    return write


def ctranslate2(folder: Path, device: torch.device) -> Callable[[Sequence[str]], Written]:
    """CTranslate2, which sorts by length and batches by tokens itself."""
    engine, converters = (importlib.import_module(each) for each in ("ctranslate2", "ctranslate2.converters"))
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    kind, settings = ("bfloat16" if device.type == "cuda" else "float32"), Settings()
    with tempfile.TemporaryDirectory() as converted:
        converters.TransformersConverter(str(folder)).convert(converted, quantization=kind, force=True)
        model = engine.Translator(converted, device=device.type, compute_type=kind, inter_threads=1, intra_threads=1)

    def write(given: Sequence[str]) -> Written:
        tokens = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(list(given))["input_ids"]]
        results = model.translate_batch(
            tokens, beam_size=1, num_hypotheses=QUERIES, sampling_topk=settings.top_k, sampling_topp=settings.top_p,
            max_decoding_length=settings.max_new_tokens, max_batch_size=settings.batch_tokens, batch_type="tokens",
        )  # fmt: skip
        return [[" ".join(words) for words in each.hypotheses] for each in results]

    return write


def mean_length(written: Written) -> float:
    """Tokens of a query."""
    return statistics.mean(len(query.split()) for queries in written for query in queries)


def equality(folder: Path, device: torch.device, dtype: str) -> dict[str, float]:
    """The share of queries that stay the same to the letter where something else than their passage changes."""
    settings, given = Settings(dtype=dtype), passages(COMPARED)
    write = ours(folder, device, settings)
    expected, backwards = write(given), write(given[::-1])[::-1]
    smaller, larger = (ours(folder, device, replace(settings, batch_tokens=size))(given) for size in (512, 32_768))
    half = write(given[::2])
    return {
        "another order": share(expected, backwards), "batches of an eighth": share(expected, smaller),
        "eight times the batch": share(expected, larger), "half of the neighbours": share(expected[::2], half),
    }  # fmt: skip


def share(expected: Written, found: Written) -> float:
    """How many queries are equal."""
    pairs = [pair for queries in zip(expected, found, strict=True) for pair in zip(*queries, strict=True)]
    return round(sum(first == second for first, second in pairs) / len(pairs), 5)


def versions() -> dict[str, str]:
    """Of what was measured."""
    found = {"torch": torch.__version__, "transformers": transformers.__version__}
    if importlib.util.find_spec("ctranslate2"):
        found["ctranslate2"] = importlib.import_module("ctranslate2").__version__
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


if __name__ == "__main__":
    main()
