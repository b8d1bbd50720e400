"""Modules without memory have the shapes of real ones, and cost no import."""

import subprocess
import sys

from torch import nn

from tasks.training.meta_device import on_meta_device


def modules() -> nn.Module:
    built = nn.Sequential(nn.Embedding(7, 4, padding_idx=0), nn.Linear(4, 3), nn.LayerNorm(3))
    nn.init.normal_(built[1].weight, std=0.02)
    built[0].weight.data.uniform_(-1, 1)
    return built


def test_shapes_are_those_of_real_modules() -> None:
    real = {name: tensor.shape for name, tensor in modules().state_dict().items()}

    with on_meta_device():
        built = modules()

    assert {name: tensor.shape for name, tensor in built.state_dict().items()} == real
    assert {tensor.device.type for tensor in built.state_dict().values()} == {"meta"}
    assert modules()[1].weight.std() > 0  # outside of the block they are drawn


def test_pytorchs_compiler_is_not_imported() -> None:
    """Nor what a recipe is read without: transformers, pandas."""
    code = """
import sys
import torch
from flows import reproduce
from models.layers import bert
from models.layers.bert import BertForMaskedLM
from models.layers.bert_config import BertConfig
from tasks.estimates.flops import counting
from tasks.training.meta_device import on_meta_device
with on_meta_device():
    BertForMaskedLM(BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=1, num_attention_heads=1,
                                         intermediate_size=4, max_position_embeddings=4))
with counting() as counter:
    torch.ones(2, 3) @ torch.ones(3, 4)
assert counter.flops == 2 * 2 * 3 * 4
print(*sorted({"torch._dynamo", "transformers", "pandas", "scipy", "ranx", "prefect"} & set(sys.modules)))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=900)

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""
