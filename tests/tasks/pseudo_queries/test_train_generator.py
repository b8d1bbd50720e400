"""A generator made of pairs: what it learns, what it is made of, and that it resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, BertTokenizer

from models.tokens import SPECIALS, Tokenizer
from storage.artifact import Artifact
from storage.errors import UserError
from storage.rows import read_rows
from storage.tables import Checkpoint, Passages, Positives, PseudoQueries, Queries
from tasks.pseudo_queries.generate_queries import NamedGeneration, generate_queries
from tasks.pseudo_queries.generators.seq2seq_objective import Examples
from tasks.pseudo_queries.generators.vocabulary import embeddings_of, frequent_pieces, save_tokenizer
from tasks.pseudo_queries.train_generator import GeneratorTraining, train_generator
from tasks.training import loop
from tasks.training.optimiser import OptimisationSettings

PAIRS = {
    "An old river runs through the city": "river of a city",
    "The king of the island was a painter": "painter and king",
    "A novel about the french war": "novel on a war",
    "This film was born in winter": "winter film",
    "Birds sing in the morning": "song of birds",
}
WORDS = sorted({word for text in [*PAIRS, *PAIRS.values()] for word in text.lower().split()})
LETTERS = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
PIECES = list(dict.fromkeys([*SPECIALS, *LETTERS, *(f"##{letter}" for letter in LETTERS), *WORDS, "unused", "##ing"]))
SETTINGS = GeneratorTraining(
    vocabulary=200, layers=2, hidden_size=32, heads=2, dropout=0.0, prefix="", input_max_tokens=16, query_max_tokens=8,
    copy_steps=10, copy_share=0.1, copy_min_tokens=2, copy_max_tokens=4, steps=150, batch=5, seed=3,
    fit=OptimisationSettings(
        learning_rate=5e-3, warmup_ratio=0.05, weight_decay=0.0, max_gradient_norm=1.0, chunk=None
    ),
)  # fmt: skip
GREEDY = NamedGeneration(
    queries_per_passage=1, prefix="", input_max_tokens=16, top_k=1, top_p=1.0, max_new_tokens=8, seed=1,
    shard_passages=100, batch_tokens=1000, generator="small T5",
)  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Artifact[Checkpoint]:
    """A BERT's folder, as far as the generator reads it."""
    folder = tmp_path_factory.mktemp("start")
    BertTokenizer(vocab={piece: number for number, piece in enumerate(PIECES)}).save_pretrained(folder)
    embeddings = torch.randn(len(PIECES), 24, generator=torch.Generator().manual_seed(1))
    save_file({"bert.embeddings.word_embeddings.weight": embeddings}, folder / "model.safetensors")
    return Artifact("initialise", "start", folder)


Tables = tuple[Artifact[Queries], Artifact[Positives], Artifact[Passages]]


@pytest.fixture(scope="module")
def tables(written: Any) -> Tables:
    texts = list(enumerate(PAIRS))
    passages = [
        {
            "passage_id": f"p{i}",
            "doc_id": f"p{i}",
            "title": "",
            "text": text,
            "start": 0,
            "end": len(text),
            "num_tokens": 7,
        }
        for i, text in texts
    ]
    return (
        written(Queries, [{"query_id": f"q{i}", "text": PAIRS[text]} for i, text in texts]),
        written(Positives, [{"query_id": f"q{i}", "passage_id": f"p{i}", "doc_id": f"p{i}"} for i, _ in texts]),
        written(Passages, passages),
    )


@pytest.fixture(scope="module")
def generator(on_one_thread: Any, run_stage: Any, tables: Tables, start: Artifact[Checkpoint]) -> Artifact[Checkpoint]:
    results: Artifact[Checkpoint] = run_stage(train_generator, *tables, start, settings=SETTINGS)
    return results


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "model.safetensors")


def test_it_learns_a_few_pairs_by_heart(generator: Any, tables: Tables, run_stage: Any) -> None:
    result = run_stage(generate_queries, passages=tables[2], generator=generator, filled=[], settings=GREEDY)

    assert [row["query"] for row in read_rows(result, PseudoQueries)] == list(PAIRS.values())


def test_hugging_face_opens_it_and_generates(generator: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(generator.path)
    model = AutoModelForSeq2SeqLM.from_pretrained(generator.path)
    text = next(iter(PAIRS))

    written = model.generate(**tokenizer(text, return_tensors="pt", return_token_type_ids=False), max_new_tokens=8)

    assert tokenizer.decode(written[0], skip_special_tokens=True) == PAIRS[text]


def test_the_same_inputs_make_the_same_files(generator: Any, run_stage: Any, tables: Tables, start: Any) -> None:
    short = SETTINGS.model_copy(update={"steps": 12})
    first, second = (run_stage(train_generator, *tables, start, settings=short).path for _ in range(2))

    names = sorted(path.name for path in first.iterdir() if path.is_file())
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= set(names)
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


@pytest.mark.usefixtures("on_one_thread")
def test_a_killed_training_ends_with_the_weights_of_an_unbroken_one(
    run_stage: Any, tables: Tables, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = SETTINGS.model_copy(update={"steps": 12, "dropout": 0.1})
    whole = run_stage(train_generator, *tables, start, settings=settings)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    batch = Examples.batch

    def killed(examples: Examples, step: int) -> Any:
        if step == 11:
            raise KeyboardInterrupt
        return batch(examples, step)

    with monkeypatch.context() as patched:
        patched.setattr(Examples, "batch", killed)
        with pytest.raises(KeyboardInterrupt):
            train_generator.body(tmp_path, *tables, start, settings=settings)
    steps: list[int] = []
    monkeypatch.setattr(Examples, "batch", lambda examples, step: steps.append(step) or batch(examples, step))
    train_generator.body(tmp_path, *tables, start, settings=settings)

    assert steps == [11]
    expected = weights(whole.path)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(tmp_path).items())


def test_the_vocabulary_is_the_frequent_pieces_with_their_embeddings(start: Any) -> None:
    groups = [(["winter winter film river", "film sing"], 1), (["morning"], 3)]

    result = frequent_pieces(start.path, groups, len(SPECIALS) + 52 + 2)

    assert result.pieces[: len(SPECIALS)] == list(SPECIALS)
    assert result.pieces[-2:] == ["morning", *[word for word in WORDS if word in ("film", "winter")][:1]]
    whole = load_file(start.path / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    assert torch.equal(embeddings_of(result, start.path)[-2], whole[PIECES.index("morning")])


def test_the_small_tokenizer_spells_what_it_lacks(start: Any, tmp_path: Path) -> None:
    save_tokenizer(frequent_pieces(start.path, [(["film"], 1)], 58), start.path, tmp_path)

    tokenizer = AutoTokenizer.from_pretrained(tmp_path)

    assert tokenizer.tokenize("Film war") == ["film", "w", "##a", "##r"]
    assert tokenizer.decode(tokenizer("Film war")["input_ids"], skip_special_tokens=True) == "film war"


def test_copied_pieces_stand_in_the_passage_and_begin_with_a_word(start: Any) -> None:
    tokenizer = Tokenizer.load(start.path)
    settings = SETTINGS.model_copy(update={"copy_steps": 50, "copy_share": 0.5, "batch": 4})
    passages = ["zebras sing in the morning", "city", "xx yy zz"]
    examples = Examples(passages, [(0, "birds"), (2, "film war")], tokenizer, settings)

    for step in range(50):
        batch = examples.batch(step)
        for text, written, mask in zip(
            batch.texts.ids.tolist(), batch.targets.ids.tolist(), batch.targets.mask, strict=True
        ):
            piece = written[1 : int(mask.sum()) - 1]
            assert written[0] == tokenizer.cls
            assert written[int(mask.sum()) - 1] == tokenizer.sep
            assert 1 <= len(piece) <= 4
            assert any(
                text[i : i + len(piece)] == piece and not tokenizer.continues[text[i]] for i in range(1, len(text))
            )


def test_after_copying_every_pair_is_visited_once_an_epoch(start: Any) -> None:
    settings = SETTINGS.model_copy(update={"copy_steps": 5, "copy_share": 0.0, "batch": 2})
    queries = [f"{word} film" for word in WORDS[:6]]
    examples = Examples(["city"] * 6, list(enumerate(queries)), Tokenizer.load(start.path), settings)

    visited = [tuple(row) for step in range(5, 8) for row in examples.batch(step).targets.ids.tolist()]

    assert len(set(visited)) == 6


@pytest.mark.usefixtures("on_one_thread")
def test_pairs_that_do_not_meet_are_an_error(tables: Tables, start: Any, written: Any, tmp_path: Path) -> None:
    others = written(Queries, [{"query_id": "x", "text": "nobody's"}])

    with pytest.raises(UserError, match="no positive names a query"):
        train_generator.body(tmp_path, others, *tables[1:], start, settings=SETTINGS)


@pytest.mark.parametrize("changes", [{"heads": 3}, {"copy_min_tokens": 9}, {"copy_steps": 151}])
def test_settings_that_do_not_fit_together_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        GeneratorTraining(**{**SETTINGS.model_dump(), **changes})
