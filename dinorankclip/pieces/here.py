"""Makes pieces in this process, or in all ranks that torchrun started: whoever is free takes the next number."""

from __future__ import annotations

import os
import platform

import torch

from dinorankclip import distributed
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import Pieces, Progress
from dinorankclip.system import core_seconds


def run_here(pieces: Pieces, missing: list[int], advance: Progress, account: Account) -> None:
    """Make the missing pieces. Every rank must call this, with the same missing pieces."""
    world, begin, made = distributed.world(), core_seconds([]), 0
    shared = distributed.SharedNumbers()
    for number in shared.take(missing):
        pieces.make(number, lambda items: advance(shared.count(items)))
        made += 1
        if world.leads:
            pieces.gather()
    distributed.wait_for_all()
    mine = torch.tensor([[made, round(1000 * (core_seconds([]) - begin)), os.getpid()]])
    for rank, (count, milliseconds, process) in enumerate(distributed.gather_integers(mine).tolist()):
        name = f"{platform.node()}.{process}" if world.size == 1 else f"rank {rank}"
        account.add(name, count, milliseconds / 1000)
