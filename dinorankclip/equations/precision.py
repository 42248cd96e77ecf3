"""What equations ask of their inputs: at least single precision, and a length that has a direction."""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST = 1e-8  # a row shorter than this has no direction; dividing by its length would blow up its gradient


def single(x: Tensor) -> Tensor:
    """Halves become fp32; fp32 stays, and so does fp64, which tests and oracles compute in."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
