"""What is named in place of a key says which keys there are."""

from __future__ import annotations

import pytest

from storage.errors import UserError
from storage.store.lookup import find
from storage.store.store import Store
from tests.storage.published import publish


def test_a_stages_name_in_place_of_a_key_lists_its_keys(store: Store) -> None:
    (store.begin("index", "new") / "file").write_text("content")
    pairs = publish(store, "index")

    with pytest.raises(
        UserError, match=rf"{pairs.stage}: this is a stage; expected a key, and in .* it has {pairs.key}$"
    ):
        find(pairs.stage, store)
    with pytest.raises(
        UserError, match=r"train_generator: .* no artifact has a key like this; expected one key or its "
    ):
        find("train_generator", store)
    assert find(pairs.key[:8], store)[1].stage == pairs.stage
