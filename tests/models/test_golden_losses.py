"""The first five losses of a tiny CoT-MAE, as they were when the code was last looked over line by line.

A change here is a change of what the objective means: explain it in the commit, then delete the file and
run this test with PRETRIEVE_WRITE_GOLDEN=1.
"""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from models.cot_mae import Pretraining, Settings, make_batch
from models.pretraining import Drawn
from models.tokens import Tokenizer
from tests.tiny import PIECES, start

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("decoder", ["ar", "ae"])
def test_first_losses(tokenizer: Tokenizer, decoder: str) -> None:
    settings = Settings(
        decoder=decoder, decoder_layers=1, window=3 if decoder == "ar" else None, text_mask_rate=0.3,
        context_mask_rate=0.45 if decoder == "ae" else None, symmetric=False, max_tokens=24, context_max_tokens=12,
    )  # fmt: skip
    torch.manual_seed(0)
    objective = Pretraining(start(), settings).train()
    optimiser = torch.optim.SGD(objective.parameters(), lr=0.05)
    found = []
    for step in range(5):
        random = np.random.default_rng(step)
        texts, contexts = (
            [random.integers(5, len(PIECES), size=random.integers(3, longest)).tolist() for _ in range(8)]
            for longest in (40, 10)
        )
        losses = objective.encode(make_batch(Drawn(texts, contexts), tokenizer, settings, random))[1]
        optimiser.zero_grad()
        (losses["mlm"] + losses["context"]).backward()
        optimiser.step()
        found.append([losses["mlm"].item(), losses["context"].item()])

    path = GOLDEN / f"cot_mae_{decoder}.txt"
    if os.environ.get("PRETRIEVE_WRITE_GOLDEN") and not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{mlm:.6f} {context:.6f}\n" for mlm, context in found))
    expected = [[float(value) for value in line.split()] for line in path.read_text().splitlines()]
    np.testing.assert_allclose(found, expected, rtol=1e-4)
