"""From documents to a pre-trained encoder with byte-level BPE and SentencePiece tokens."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from models import backbones
from models.masking import IGNORED
from models.papers import ict
from models.tokens import Tokenizer, copy_tokenizer
from storage.artifact import Artifact, Source
from storage.rows import read_rows, write_rows
from storage.store.store import Store
from storage.tables import Documents, Pairs, Passages, Qrels, Queries, Terms
from tasks.corpus.split_corpus import Splitting, split_corpus
from tasks.pretraining.count_terms import count_terms
from tasks.pretraining.draw_probe import Drawing, draw_probe
from tasks.pretraining.pair_contexts import Pairing, pair_contexts
from tasks.pretraining.pretrain import Pretraining, PretrainingBatches, pretrain
from tasks.session import Execution, Session, session
from tests import tokenizers
from tests.tasks.pretraining.test_pretrain import MASKED, settings
from tests.tiny_families import tiny_network
from tests.tokenizers import SENTENCES

KINDS = ["byte_level", "sentencepiece"]
SHORT = "The café was grey. The river (they say) ran 中文. Bread and letters! "
PAIRING = Pairing(
    pseudo_queries=0, passages=["overlap", "nearby"], alone="leave_out", max_tokens=30, language="en", seed=1
)


class Chain:
    """The stages from documents to pairs, the counts of terms and the probe, for one tokenizer."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.start: Artifact[Any] = Artifact("initialise", kind, tokenizers.save(folder / "start", kind))
        tokenizer = Source("tiny", self.start.path)
        texts = [SENTENCES[n % 4] + " " + SHORT * 3 + SENTENCES[(n + 1) % 4] for n in range(8)]
        documents = self.written(
            folder / "documents", Documents, [{"doc_id": f"d{n}", "title": "", "text": t} for n, t in enumerate(texts)]
        )
        self.passages = self.built(
            folder / "passages", split_corpus, documents, tokenizer, settings=Splitting(max_tokens=40, titles=False)
        )
        self.pairs = self.built(folder / "pairs", pair_contexts, self.passages, None, tokenizer, settings=PAIRING)
        self.terms = self.built(folder / "terms", count_terms, self.pairs, tokenizer)
        queries = [{"query_id": f"q{n}", "text": "the café by the river"} for n in range(8)]
        qrels = [{"query_id": f"q{n}", "doc_id": f"d{n}", "grade": 1} for n in range(8)]
        self.probe = self.built(
            folder / "probe", draw_probe, self.written(folder / "queries", Queries, queries),
            self.written(folder / "qrels", Qrels, qrels), self.passages, settings=Drawing(pairs=4, seed=1),
        )  # fmt: skip

    @staticmethod
    def written(folder: Path, table: Any, rows: Any) -> Artifact[Any]:
        """An artifact with these rows."""
        folder.mkdir()
        write_rows(folder, table, rows)
        return Artifact(folder.name, "0", folder)

    @staticmethod
    def built(folder: Path, stage: Any, *inputs: Any, **named: Any) -> Artifact[Any]:
        """The artifact that a stage builds."""
        folder.mkdir()
        stage.body(folder, *inputs, **named)
        return Artifact(stage.name, folder.name, folder)


@pytest.fixture(scope="module", params=KINDS)
def chain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The chain of a kind, in a session that lasts as long."""
    folder = tmp_path_factory.mktemp(request.param)
    with session(Session(Store(folder / "store"), Execution(workers=1, threads=1, device="cpu"))):
        yield Chain(folder, request.param)


def test_passages_have_as_many_tokens_as_the_encoder_reads(chain: Chain) -> None:
    rows, tokenizer = list(read_rows(chain.passages, Passages)), Tokenizer.load(chain.start.path)

    assert [row["num_tokens"] for row in rows] == [len(ids) for ids in tokenizer.token_ids([r["text"] for r in rows])]
    assert max(row["num_tokens"] for row in rows) <= 40
    assert len(rows) > 16


def test_terms_are_counted_by_id(chain: Chain) -> None:
    tokenizer, rows = Tokenizer.load(chain.start.path), list(read_rows(chain.terms, Terms))

    texts = [row["text"] for row in read_rows(chain.pairs, Pairs)]
    occurrences = Counter(number for ids in tokenizer.token_ids(texts) for number in ids)
    assert {row["piece"]: row["occurrences"] for row in rows if row["occurrences"]} == dict(occurrences)
    assert len(rows) == tokenizer.vocab_size


def test_batches_have_the_cached_texts_between_the_tokenizers_special_tokens(chain: Chain, tmp_path: Path) -> None:
    reference = PreTrainedTokenizerFast(tokenizer_file=str(chain.start.path / "tokenizer.json"))
    batches = PretrainingBatches.read(
        tmp_path, chain.pairs, None, chain.start, settings(objective=MASKED | {"max_tokens": 60})
    )
    texts = {tuple(reference(row["text"])["input_ids"]) for row in read_rows(chain.pairs, Pairs)}

    for step in range(5):
        batch = batches.rows(step, 0, batches.num_rows)
        tokens, labels = batch.text, batch.text_labels
        ids = tokens.ids.where(labels == IGNORED, labels)
        assert {tuple(row[mask].tolist()) for row, mask in zip(ids, tokens.mask, strict=True)} <= texts
        assert (tokens.ids[labels != IGNORED] == batches.tokenizer.mask).float().mean() > 0.6
        assert not set(labels[labels != IGNORED].tolist()) & set(batches.tokenizer.specials.tolist())


@pytest.mark.parametrize("paper", ["cot_mae", "ict"])
def test_a_pre_training_runs_with_its_probe(chain: Chain, tmp_path: Path, paper: str) -> None:
    (tmp_path / "out").mkdir()
    chosen = (
        settings(steps=2, probe={"every": 1, "pairs": 4})
        if paper == "cot_mae"
        else Pretraining[ict.Settings].model_validate(
            settings(steps=2, probe={"every": 1, "pairs": 4}).model_dump()
            | {"paper": "ict", "objective": {
                "removal_rate": 1.0, "temperature": 1.0, "max_tokens": 60, "sentence_max_tokens": 30
            }}
        )
    )  # fmt: skip

    pretrain.body(tmp_path / "out", chain.pairs, None, chain.start, chain.probe, settings=chosen)

    rows = [json.loads(line) for line in (tmp_path / "out" / "logs" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(0 <= row["probe_MRR@10"] <= 1 for row in rows)
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert Tokenizer.load(tmp_path / "out").token_ids(["a river"]) == Tokenizer.load(chain.start.path).token_ids(
        ["a river"]
    )


def test_a_roberta_is_pre_trained_with_its_kind_of_tokens(chain: Chain, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(chain.start.path)
    (folder := tmp_path / "roberta").mkdir()
    tiny_network(
        "roberta", vocab_size=tokenizer.vocab_size, pad_token_id=tokenizer.pad, max_position_embeddings=66
    ).save_pretrained(folder)
    copy_tokenizer(chain.start.path, folder)
    (tmp_path / "out").mkdir()
    chosen = settings(objective=MASKED | {"max_tokens": 60}, steps=2, probe={"every": 1, "pairs": 4})

    pretrain.body(
        tmp_path / "out", chain.pairs, None, Artifact("initialise", "r", folder), chain.probe, settings=chosen
    )

    assert backbones.load(tmp_path / "out").config.vocab_size == tokenizer.vocab_size
    assert Tokenizer.load(tmp_path / "out").encode(["the river"], 9) == tokenizer.encode(["the river"], 9)
