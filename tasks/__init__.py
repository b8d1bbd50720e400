"""Stages, and the mechanisms that run them."""

import os

# OpenMP's threads wait for each other at the end of every operation. By default they spin, and where other processes
# use the cores a training with two threads becomes several times slower (docs/log.md). The variable is read when
# PyTorch's OpenMP library is loaded, and processes started from here inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
