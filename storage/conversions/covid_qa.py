"""COVID-QA (Möller et al. 2020; Apache-2.0): experts' questions on scientific papers, with answers from their texts.

The file of 23 April 2020 is read: 98 papers and 1,380 questions, all in the split `dev`. The final file has more. A
paper is a document, its title is the text's first line, and the paper that a question is about is relevant.
"""

from __future__ import annotations

import json
from pathlib import Path

from storage.conversions.beir_files import relevant, write_json_lines, write_qrels


def convert(download: Path, folder: Path) -> None:
    """Write papers, questions with answers and judgements from a file in SQuAD's format."""
    papers = {
        str(paper["document_id"]): paper
        for article in json.loads(download.read_bytes())["data"]
        for paper in article["paragraphs"]
    }
    write_json_lines(folder / "corpus.jsonl.gz", (
        {"_id": name, "title": paper["context"].partition("\n")[0].strip(), "text": paper["context"]}
        for name, paper in papers.items()
    ))  # fmt: skip
    questions = [(name, question) for name, paper in papers.items() for question in paper["qas"]]
    write_json_lines(folder / "queries.jsonl.gz", (
        {"_id": str(question["id"]), "text": question["question"],
         "answers": [answer["text"].strip() for answer in question["answers"]], "document": name}
        for name, question in questions
    ))  # fmt: skip
    write_qrels(folder / "qrels/dev.tsv", (relevant(str(question["id"]), name) for name, question in questions))
