"""Settings that were added after artifacts had been built: at their defaults they change no key."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from models.papers import dup_mae, retro_mae
from models.retrievers.views import dense

RETRO_MAE = {"text_mask_rate": 0.3, "decoder_mask_rate": 0.5, "query_stream": "sum", "max_tokens": 20}
DUP_MAE = RETRO_MAE | {
    "cls_decoding": True, "ot_decoding": True, "bow_weight": 1.0, "bow_target": "sum_over_set", "exclude_masked": True,
    "ot_head": "own",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "added"),
    [
        (retro_mae.Settings, RETRO_MAE, {"crop": "end"}),
        (dup_mae.Settings, DUP_MAE, {"crop": "end"}),
        (dense.Settings, {"dim": 3, "weight": 1.0}, {"bias": True}),
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
