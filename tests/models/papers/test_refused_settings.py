"""Settings of papers that are refused: by themselves, or by the model that they are for."""

import dataclasses
from typing import Any

import pytest

from models.pretraining import RawBatch
from models.row_random import RowRandom
from models.tokens import Tokenizer
from tests.models.papers import test_cot_mote as cot_mote
from tests.models.papers import test_cpdae as cpdae
from tests.models.papers import test_prop as prop
from tests.models.papers.test_training import PAPERS, Paper
from tests.tiny import SHAPE, start

HEAD: list[tuple[dict[str, Any], str]] = [({"head_layers": 0}, "head_layers"), ({"head_from": -1}, "head_from")]
MASKS: list[tuple[dict[str, Any], str]] = [({"mask_rate": 0.0}, "mask_rate"), ({"mask_rate": 1.1}, "mask_rate")]
WINDOW: list[tuple[dict[str, Any], str]] = [
    ({"window": 0}, "window: expected 1 or more"), ({"window": -1}, "window"),
    ({"decoder_layers": 0}, "decoder_layers"), ({"decoder_width": 0}, "decoder_width: expected 1 or more, or null"),
]  # fmt: skip
REFUSED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "co_condenser": [
        *MASKS, *HEAD, ({"temperature": 0.0}, "temperature"), ({"masked_lm_weight": -1.0}, "masked_lm_weight"),
    ],
    "condenser": [*MASKS, *HEAD],
    "cot_mae, auto-regressive": [
        ({"text_mask_rate": 0.0}, "text_mask_rate"),
        ({"decoder": "ae", "window": None, "context_mask_rate": 1.5}, "context_mask_rate"),
        ({"decoder": "ae"}, "decoder ae: expected a context_mask_rate, and null for window"),
        ({"decoder": "ae", "context_mask_rate": 0.45}, "decoder ae: expected a context_mask_rate, and null for window"),
        ({"context_mask_rate": 0.45}, "decoder ar: expected a window of 1 or more, and null for context_mask_rate"),
        ({"symmetric": True}, "equal max_tokens for both"), ({"decoder_layers": 0}, "decoder_layers"),
        ({"window": 0}, "expected a window of 1 or more"), ({"window": -1}, "window"),
        ({"decoder_width": 0}, "decoder_width: expected 1 or more, or null"),
    ],
    "cot_mote, mixture": [
        ({"bottlenecks": []}, "bottlenecks: expected dense, lexical or both"),
        ({"bottlenecks": ["dense", "dense"]}, "bottlenecks: expected dense, lexical or both"),
        ({"bottlenecks": ["lexical"], "lexical_bottleneck": None}, "lexical_bottleneck: expected l1 or softmax"),
        ({"bottlenecks": ["dense"]}, "lexical_bottleneck: expected .* else null"), *MASKS, *WINDOW,
    ],
    "cpdae, words": [
        *MASKS, ({"anchors": None}, "contrast words: expected values for contrast_weight"),
        ({"contrast": "hidden", "contrast_temperature": None}, "contrast hidden: expected values"),
        ({"contrast": "none"}, "contrast none: expected null for contrast_weight"),
        ({"contrast": "none", **cpdae.NONE, "contrast_reduction": "sum"}, "contrast none: expected null"),
        ({"contrast_temperature": 0.0}, "above 0"), ({"contrast_weight": -0.1}, "above 0"),
    ],
    "dup_mae, released": [
        ({"cls_decoding": False, "ot_decoding": False, "bow_weight": None}, "expected at least one of them"),
        ({"bow_weight": None}, "bow_weight: expected a number above 0 with ot_decoding"),
        ({"ot_decoding": False}, "bow_weight: expected null without ot_decoding"),
        ({"bow_weight": 0.0}, "bow_weight: expected a number above 0"),
        ({"text_mask_rate": 0.0}, "text_mask_rate"), ({"decoder_mask_rate": 1.5}, "decoder_mask_rate"),
    ],
    "ict": [
        ({"removal_rate": 0.0}, "removal_rate"), ({"removal_rate": 1.1}, "removal_rate"),
        ({"temperature": 0.0}, "temperature"),
    ],
    "masked_lm": MASKS,
    "prop": [
        *MASKS, ({"mean_words": 0.0}, "mean_words: expected a number above 0"),
        ({"margin": -1.0}, "margin: expected a number above 0"), ({"pairs": 0}, "pairs: expected 1 or more"),
        ({"smoothing": 0.0}, "smoothing: expected a number above 0"),
    ],
    "retro_mae, sum": [
        ({"text_mask_rate": 0.0}, "text_mask_rate: expected a share"),
        ({"decoder_mask_rate": 1.5}, "decoder_mask_rate: expected a share"),
    ],
    "seed": [*MASKS, *WINDOW],
    "sim_cse": [
        ({"dropout": 0.0}, "dropout"), ({"dropout": 1.0}, "dropout"), ({"dropout": -0.1}, "dropout"),
        ({"temperature": 0.0}, "temperature"),
    ],
}  # fmt: skip
CASES = [(name, changes, message) for name, cases in REFUSED.items() for changes, message in cases]
LENGTHS = [
    (name, setting.name)
    for name in REFUSED for setting in dataclasses.fields(PAPERS[name].settings) if setting.name.endswith("max_tokens")
]  # fmt: skip


def pretraining(paper: Paper, **changes: Any) -> Any:
    return paper.tests.Pretraining(paper.begin(), dataclasses.replace(paper.settings, **changes))


@pytest.mark.parametrize(("name", "changes", "message"), CASES)
def test_values_without_a_meaning(name: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PAPERS[name].settings, **changes)


@pytest.mark.parametrize(("name", "length"), LENGTHS)
def test_fewer_tokens_than_a_text_needs_and_more_than_the_model_has_positions(name: str, length: str) -> None:
    with pytest.raises(ValueError, match=f"{length}: expected 3 or more"):
        dataclasses.replace(PAPERS[name].settings, **{length: 2})
    positions = SHAPE["max_position_embeddings"]
    with pytest.raises(ValueError, match=f"max_tokens: expected at most {positions}, found {positions + 1}"):
        pretraining(PAPERS[name], **{length: positions + 1})


@pytest.mark.parametrize("name", ["co_condenser", "condenser"])
@pytest.mark.parametrize("head_from", [2, 6])
def test_a_head_that_would_read_the_last_layer_or_none(name: str, head_from: int) -> None:
    message = f"head_from: expected a layer before the last of the model's 2, found {head_from}"
    with pytest.raises(ValueError, match=message):
        pretraining(PAPERS[name], head_from=head_from)


def test_switched_experts_need_two_encoders() -> None:
    settings = dataclasses.replace(cot_mote.DENSE, switched=True)
    with pytest.raises(ValueError, match="switched: expected separate query and passage encoders"):
        cot_mote.Pretraining(cot_mote.begin("siamese"), settings)


def test_term_counts_are_needed(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="term counts, found none"):
        cpdae.Pretraining(start(), cpdae.WORDS)
    with pytest.raises(ValueError, match="term counts, found none"):
        prop.make_batch(RawBatch([[5]]), tokenizer, prop.SETTINGS, RowRandom(0, 0))
