"""Makes the missing pieces of work by whoever the user chose, and accounts for it."""

from __future__ import annotations

import time
from pathlib import Path

from tqdm import tqdm

from dinorankclip import distributed
from dinorankclip.pieces.account import Account
from dinorankclip.pieces.contract import HERE, Pieces, Where, Work
from dinorankclip.pieces.crew import Crew
from dinorankclip.pieces.here import run_here
from dinorankclip.types import UserError


def make_pieces(
    pieces: Pieces, where: Where = HERE, work: Work | None = None, place: Path | None = None, show: bool = True
) -> Account:
    """Make what is missing, and return the account. Every rank of torchrun must call this.

    Workers elsewhere open `work`, and meet in a folder below `place`, which they must share. A stop at any time costs
    at most the pieces that were being made.
    """
    world, account, begin = distributed.world(), Account(), time.monotonic()
    missing = pieces.missing()
    distributed.wait_for_all()  # all ranks look before one of them writes, so that they see the same
    if missing:
        distributed.leader_first(pieces.prepare)
        sizes = pieces.sizes
        total = sum(sizes)
        bar = tqdm(
            desc=pieces.title, initial=total - sum(sizes[number] for number in missing), total=total,
            unit=pieces.unit, disable=not (show and world.leads), mininterval=1.0, dynamic_ncols=True,
            bar_format="{l_bar}{bar}| {n:.0f}/{total_fmt} [{elapsed}<{remaining}, {rate_fmt}{postfix}]",
        )  # fmt: skip
        with bar:
            if where.on == "here":
                run_here(pieces, missing, bar.update, account)
            else:
                _run_elsewhere(pieces, missing, where, work, place, bar, account)
    distributed.leader_first(pieces.gather)
    account.seconds = time.monotonic() - begin
    if left := pieces.missing():
        raise UserError(
            f"{pieces.title}: {len(left)} of {len(pieces.sizes)} pieces are missing after all; the same command makes "
            "them. If they were made on another machine: all machines must share the disk of the output"
        )
    if missing and show and world.leads and (where.on != "here" or world.size > 1):
        print(f"{pieces.title}: {account}", flush=True)
    return account


def _run_elsewhere(
    pieces: Pieces, missing: list[int], where: Where, work: Work | None, place: Path | None, bar: tqdm, account: Account
) -> None:
    if work is None or place is None:
        raise UserError(f"--on {where.on}: {pieces.title} can be made by this process and torchrun alone")
    if distributed.world().size > 1:
        raise UserError(f"torchrun has started the workers already: leave out --on {where.on}, or torchrun")
    crew = Crew.begin(place, work, pieces.identity)
    try:
        if where.on == "slurm":
            from dinorankclip.pieces.on_slurm import run_on_slurm

            run_on_slurm(pieces, missing, crew, where, work.device, bar.update, account)
        else:
            from dinorankclip.pieces.on_ray import run_on_ray

            run_on_ray(pieces, missing, crew, where, work.device, bar, account)
    finally:
        crew.remove()
