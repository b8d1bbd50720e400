"""SQuAD v1.1's development set (Rajpurkar et al. 2016; CC BY-SA 4.0): questions on paragraphs of Wikipedia's articles.

Documents are articles, the corpus is their paragraphs, and a question's paragraph is relevant. Of the 48 articles, in
the order of the SHA-256 of their names, the largest first, 8 are not used, the next 8 are `dev`, and 32 are `train`.
Folds divide the 40 articles (storage/conversions/squad_folds.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from storage.conversions.beir_files import relevant, write_json_lines, write_qrels
from storage.conversions.squad_folds import fold_articles, ordered_articles, write_folds

NUM_UNUSED = 8


def convert(download: Path, folder: Path) -> None:
    """Write documents, paragraphs, questions with answers, the split and its folds from dev-v1.1.json."""
    paragraphs: dict[str, list[dict[str, Any]]] = {
        article["title"]: article["paragraphs"] for article in json.loads(download.read_bytes())["data"]
    }
    articles = sorted(ordered_articles(paragraphs)[NUM_UNUSED:])
    texts = {name: [paragraph["context"].strip() for paragraph in paragraphs[name]] for name in articles}
    titles = {name: name.replace("_", " ") for name in articles}
    write_json_lines(folder / "documents.jsonl.gz", (
        {"_id": name, "title": titles[name], "text": "\n\n".join(texts[name])} for name in articles
    ))  # fmt: skip
    write_json_lines(folder / "corpus.jsonl.gz", (
        {"_id": f"{name}#{number}", "title": titles[name], "text": text, "document": name}
        for name in articles for number, text in enumerate(texts[name])
    ))  # fmt: skip
    questions = [
        (name, f"{name}#{number}", question)
        for name in articles for number, paragraph in enumerate(paragraphs[name]) for question in paragraph["qas"]
    ]  # fmt: skip
    write_json_lines(folder / "queries.jsonl.gz", (_query(question) for _, _, question in questions))
    dev = fold_articles(articles, 5)[0]
    for split, names in (("dev", dev), ("train", set(articles) - dev)):
        judged = (relevant(question["id"], paragraph) for name, paragraph, question in questions if name in names)
        write_qrels(folder / f"qrels/{split}.tsv", judged)
    write_folds(folder)


def _query(question: dict[str, Any]) -> dict[str, object]:
    """Return a question with its distinct answers, sorted."""
    answers = sorted({answer["text"].strip() for answer in question["answers"]})
    return {"_id": question["id"], "text": question["question"].strip(), "answers": answers}
