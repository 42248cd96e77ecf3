"""Looks for damage in checkpoints before a run resumes: a damaged checkpoint is set aside aloud, and the run goes on
from the newest checkpoint before it that is whole. The links `last` and `best` are brought up to date and leftovers
removed: a kill between the rename of the last checkpoint and its links leaves old links, and a run at its end
writes no other checkpoint that would mend them."""

from __future__ import annotations

import os
from pathlib import Path

from dinorankclip import distributed
from dinorankclip.checked_files import UnfitFile
from dinorankclip.checksums import CHECKSUMS, check_folder
from dinorankclip.models.folder import CONFIG, WEIGHTS
from dinorankclip.models.weights_file import tensor_shapes
from dinorankclip.run_files import BEST, LAST, NUMBERS, STEP, TENSORS, read_numbers
from dinorankclip.train import checkpoints
from dinorankclip.train.run_folder import say
from dinorankclip.types import UserError

ASIDE = "damaged-"  # a damaged checkpoint step-N is renamed to damaged-step-N


def newest_whole(folder: Path) -> Path | None:
    """Return the newest whole checkpoint, after damaged newer ones were set aside; None if there is no checkpoint.

    Every process must call this. The leading process looks and renames while the others wait.
    """
    distributed.leader_first(lambda: _put_in_order(folder))
    return checkpoints.newest(folder)


def fault_of(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint; "" if it is whole. Checkpoints of old versions have no hashes: their
    files must be there and be readable. Errors of the disk itself are raised, since they may pass."""
    for name in (CONFIG, WEIGHTS, TENSORS, NUMBERS):
        if not (checkpoint / name).is_file():
            return f"{checkpoint / name} is missing"
    try:
        check_folder(checkpoint, advice="")
        if not (checkpoint / CHECKSUMS).is_file():
            read_numbers(checkpoint)
            for name in (WEIGHTS, TENSORS):
                tensor_shapes(checkpoint / name)
    except UnfitFile as error:
        return str(error).rstrip("; ")
    except UserError as error:  # no safetensors file, or a file without read permission
        return str(error)
    return ""


def _put_in_order(folder: Path) -> None:
    _set_damaged_aside(folder)
    _repair_links(folder)
    checkpoints.remove_leftovers(folder)


def _set_damaged_aside(folder: Path) -> None:
    damaged: dict[Path, str] = {}
    for checkpoint in reversed(checkpoints.whole(folder)):
        if not (fault := fault_of(checkpoint)):
            break
        damaged[checkpoint] = fault
    else:
        if damaged:
            raise UserError(
                f"{next(iter(damaged.values()))}. No older checkpoint is whole, so the run cannot go on. Copy a "
                f"checkpoint back from a backup to {folder}, or begin anew with --restart, which keeps this folder "
                "under another name."
            )
    for checkpoint, fault in damaged.items():
        aside = _free_name(checkpoint.with_name(ASIDE + checkpoint.name))
        os.replace(checkpoint, aside)
        say(f"note: {fault}. The checkpoint is set aside as {aside}, and the run goes on from the one before it")


def _free_name(path: Path) -> Path:
    number, free = 2, path
    while free.exists():
        free, number = path.with_name(f"{path.name}-{number}"), number + 1
    return free


def _repair_links(folder: Path) -> None:
    """Let `last` name the newest checkpoint and `best` the one that it knows as the best; remove `best` if its
    checkpoint is gone."""
    newest = checkpoints.newest(folder)
    if newest is None:
        return
    best, known = folder / BEST, folder / f"{STEP}{read_numbers(newest).get('best_step', -1)}"
    checkpoints.link(folder / LAST, newest)
    if known.is_dir():
        checkpoints.link(best, known)
    elif best.is_symlink() and not (best.exists() and best.resolve().name.startswith(STEP)):
        best.unlink()
