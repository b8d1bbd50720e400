"""What tests of models may use: a tokenizer of a hundred WordPiece tokens."""

from collections.abc import Iterator

import pytest
import torch

from models.tokens import Tokenizer
from tests.tiny import save_tokenizer


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tokenizer of `tests.tiny`."""
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder)
    return Tokenizer.load(folder)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products are quickest on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
