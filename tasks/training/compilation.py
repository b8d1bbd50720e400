"""Compiled transformer layers: `torch.compile` for the layers of BERT and of the decoders, where a run requests it.

Steps differ in their number of tokens, so layers are compiled for any shape, and one compiled layer serves all layers
of its class. Dropout keeps eager mode's random numbers: gradient caching encodes a chunk twice, once without a graph,
and both passes must drop the same. Parameters keep their names, so checkpoints do not depend on this setting.
"""

from __future__ import annotations

import os
import shutil
import sys

from torch import nn

from models.layers.adapter import Adapter
from models.layers.bert_layers import Layer
from models.layers.decoder import PreNormBlock
from storage.errors import UserError

# PyTorch compiles a variant for each combination of padding or none, gradients or none, dropout, and layer size, and by
# default at most 8. Layers beyond the limit run without compilation, with no more than a warning.
MOST_VARIANTS = 64


def compile_layers(module: nn.Module) -> None:
    """Compile the transformer layers of a module in place.

    Raise `UserError` for an encoder of another family than BERT, and where no C++ compiler is installed.
    """
    check_family(module)
    check_compiler()
    for part in module.modules():
        if isinstance(part, Layer | PreNormBlock):
            part.compile(dynamic=True, recompile_limit=MOST_VARIANTS, options={"fallback_random": True})


def check_family(module: nn.Module) -> None:
    """Raise `UserError` unless the module's encoders are BERTs."""
    for part in module.modules():
        if isinstance(part, Adapter):
            model_type = part.network.config.model_type
            raise UserError(
                f"execution.compile: expected a backbone of model_type bert, found {model_type}; "
                "set execution.compile=false"
            )


def check_compiler() -> None:
    """Raise `UserError` unless the compiler is installed that PyTorch runs: that of `CXX`, or the system's default."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"execution.compile: expected a C++ compiler, found no {compiler} on PATH; install it, name another in the "
            "environment variable CXX, or set execution.compile=false"
        )
