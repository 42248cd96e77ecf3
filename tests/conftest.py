"""Tests import open_clip directly; the operators must be declared before that (see `declare_missing`)."""

import os

# Runs default to device auto: on a machine with a GPU they would run there, in bf16, against numbers of the CPU. Before
# torch, which looks once; whoever sets it means it.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
# Some virtual machines announce bf16 tiles (AMX) and forbid them: oneDNN then ends the process. torch's own Muon, which
# a test compares with, computes in bf16.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX2")

import pytest
import torch

from dinorankclip.device import declare_missing

declare_missing()


@pytest.fixture(autouse=True)
def one_thread():
    """Test tensors are tiny: a second thread only waits, and waits long when the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
