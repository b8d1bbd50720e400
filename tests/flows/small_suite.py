"""A suite of three tiny collections, of which two are a group, and two tiny models to evaluate on it."""

import json
from pathlib import Path

import yaml

from tasks.session import Execution
from tests.tiny import WORDS, save_backbone

TEXTS = {
    "one": [" ".join(WORDS[(3 * n + k) % 16] for k in range(3)) for n in range(12)],
    "two": [" ".join(WORDS[(5 * n + k) % 16] for k in range(4)) for n in range(9)],
    "three": [" ".join(WORDS[(7 * n + k) % 16] for k in range(2)) for n in range(10)],
}
"""The documents of three collections; each is relevant to a query of its first word and another document's last."""
EXECUTION = Execution(workers=1, threads=1, device="cpu")


def question(texts: list[str], number: int) -> str:
    return f"{texts[number].split()[0]} {texts[(number + 1) % len(texts)].split()[-1]}"


def make_suite(folder: Path) -> Path:
    """Write collections in BEIR's layout, two tiny BERTs and a suite; return the suite's file."""
    for name, texts in TEXTS.items():
        (folder / name / "qrels").mkdir(parents=True)
        rows = [json.dumps({"_id": f"d{n}", "title": "", "text": text}) for n, text in enumerate(texts)]
        (folder / name / "corpus.jsonl").write_text("\n".join(rows) + "\n")
        queries = [json.dumps({"_id": f"q{n}", "text": question(texts, n)}) for n in range(len(texts))]
        (folder / name / "queries.jsonl").write_text("\n".join(queries) + "\n")
        qrels = [f"q{n}\td{n}\t1" for n in range(len(texts))]
        (folder / name / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]) + "\n")
    for name, seed in (("ours", 0), ("other", 1)):
        (folder / name).mkdir()
        save_backbone(folder / name, seed=seed, spread=0.3)
    collections = [
        {"name": name, "reader": "beir", "path": str(folder / name), "eval_split": "test", "documents": len(texts)}
        | ({"group": "pair"} if name != "one" else {})
        for name, texts in TEXTS.items()
    ]
    suite = {
        "title": "Three", "description": "made for a test", "seed": 1, "tokenizer": str(folder / "ours"),
        "split": {"max_tokens": None, "titles": True}, "encode": {"query_max_tokens": 512, "passage_max_tokens": 512},
        "bm25": {"engine": "bm25", "k1": 0.9, "b": 0.4}, "index": {"engine": "exact"}, "search": {"documents": 100},
        "evaluate": {"metrics": ["nDCG@10", "MRR@10"], "resamples": 10000}, "metric": "nDCG@10",
        "expected_from": "a test", "collections": collections, "execution": EXECUTION.model_dump(),
    }  # fmt: skip
    file = folder / "three.yaml"
    file.write_text(yaml.safe_dump(suite, sort_keys=False))
    return file
