"""Settings that were added after artifacts had been built: at their defaults they change no key."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from models.papers import cot_mae, cot_mote, dup_mae, retro_mae, seed
from models.retrievers.objective import Flops
from models.retrievers.views.dense import DenseSettings
from models.retrievers.views.late import LateSettings
from tests.tiny import LATE

RETRO_MAE = {"text_mask_rate": 0.3, "decoder_mask_rate": 0.5, "query_stream": "sum", "max_tokens": 20}
DUP_MAE = RETRO_MAE | {
    "cls_decoding": True, "ot_decoding": True, "bow_weight": 1.0, "bow_target": "sum_over_set", "exclude_masked": True,
    "ot_head": "own",
}  # fmt: skip

COT_MAE = {
    "decoder": "ar", "decoder_layers": 1, "window": 3, "text_mask_rate": 0.3, "context_mask_rate": None,
    "symmetric": False, "max_tokens": 20, "context_max_tokens": 10,
}  # fmt: skip
COT_MOTE = {
    "bottlenecks": ["dense"], "lexical_bottleneck": None, "switched": False, "query_target": "query", "mask_rate": 0.3,
    "decoder_layers": 1, "window": 3, "max_tokens": 20, "query_max_tokens": 10,
}  # fmt: skip
SEED = {"decoder_layers": 3, "window": 2, "mask_rate": 0.15, "max_tokens": 20}


@pytest.mark.parametrize(
    ("kind", "value", "added"),
    [
        (retro_mae.Settings, RETRO_MAE, {"crop": "end"}),
        (dup_mae.Settings, DUP_MAE, {"crop": "end"}),
        (cot_mae.Settings, COT_MAE, {"decoder_width": 128}),
        (cot_mote.Settings, COT_MOTE, {"decoder_width": 128}),
        (seed.Settings, SEED, {"decoder_width": 128}),
        (LateSettings, LATE | {"weight": 1.0}, {"markers": True}),
        (Flops, {"queries": 0.1, "passages": 0.1, "ramp": 0.3}, {"ramp_counts_step": True}),
        (DenseSettings, {"dim": 3, "weight": 1.0}, {"bias": True}),
    ],
)
def test_a_default_is_left_out_of_the_dump(kind: type, value: dict[str, Any], added: dict[str, Any]) -> None:
    adapter = TypeAdapter(kind)
    default = {name: kind.__dataclass_fields__[name].default for name in added}

    assert adapter.dump_python(adapter.validate_python(value), mode="json") == value
    assert adapter.dump_python(adapter.validate_python(value | default), mode="json") == value
    changed = adapter.validate_python(value | added)
    assert adapter.dump_python(changed, mode="json") == value | added
    assert adapter.validate_python(adapter.dump_python(changed, mode="json")) == changed
