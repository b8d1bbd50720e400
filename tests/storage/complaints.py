"""What a reader complains of: one line, whatever is wrong."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from storage.errors import UserError


def complaint(read: Callable[[], Iterable[Any]]) -> str:
    """The error that reading all of it ends with."""
    with pytest.raises(UserError) as error:
        list(read())
    assert "\n" not in str(error.value)
    return str(error.value)
