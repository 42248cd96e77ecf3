"""Compares every byte of what was written with its hashes, for `doctor`: checkpoints of a run, exports, teacher caches
and folders of embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from dinorankclip.checked_files import UnfitFile
from dinorankclip.checksums import CHECKSUMS, changed_files, read_checksums, read_sealed
from dinorankclip.models.export_files import CARD
from dinorankclip.models.folder import CONFIG, OPEN_CLIP_CONFIG
from dinorankclip.run_files import CHECKPOINTS
from dinorankclip.search import embed_collection
from dinorankclip.teachers import cache_format
from dinorankclip.train.checkpoints import whole
from dinorankclip.train.whole_checkpoints import fault_of
from dinorankclip.types import Finding, UserError

_OLD = "it was written by a version without hashes, so damaged bytes cannot be noticed"


def examiner_of(folder: Path) -> Callable[[Path], Iterator[Finding]] | None:
    """Return the function that examines a folder of this kind; None for data, runs and anything else."""
    if (folder / cache_format.PLAN).is_file():
        return examine_cache
    if any((folder / name).is_file() for name in (CONFIG, OPEN_CLIP_CONFIG, CHECKSUMS)):
        return examine_model
    if (folder / embed_collection.MANIFEST).is_file() and list(folder.glob("*.npy")):
        return examine_embeddings
    return None


def examine_checkpoints(run: Path) -> Iterator[Finding]:
    """Yield a finding for each damaged checkpoint of a run, or one for all of them."""
    folders = whole(run / CHECKPOINTS)
    faults = [fault for folder in folders if (fault := fault_of(folder))]
    for fault in faults:
        yield Finding("problem", fault, "give the run's train command again: it goes on from a whole checkpoint")
    if folders and not faults:
        yield Finding("fine", f"{len(folders)} checkpoint{'s' * (len(folders) > 1)}, all as they were written")


def examine_model(folder: Path) -> Iterator[Finding]:
    """Yield findings on a model folder or an export, in each of its formats."""
    for place in (folder, *sorted(path.parent for path in folder.glob(f"*/{CHECKSUMS}"))):
        try:
            known, changed = read_checksums(place), list(changed_files(place))
        except UnfitFile as error:
            yield Finding("problem", str(error))
            continue
        if not known:
            yield Finding("note", f"{place} has no {CHECKSUMS}", _OLD)
            continue
        missing = [name for name in known if not (place / name).is_file()]
        for name in missing:
            yield Finding("note", f"{place / name} is missing", "copy the folder again if you did not remove it")
        for path in changed:
            if path.name == CARD:
                yield Finding("note", f"{path} was changed after the export", "fine if you wrote in it")
            else:
                yield Finding("problem", f"{path} is not as it was written", "copy the folder again")
        if not missing and not changed:
            yield Finding("fine", f"{place}: {len(known)} files, all as they were written")


def examine_cache(folder: Path) -> Iterator[Finding]:
    """Yield findings on a teacher cache; every file is read."""
    try:
        manifest = cache_format.read_manifest(folder)
    except UserError as error:
        yield Finding("problem", str(error))
        return
    hashes = manifest.get(cache_format.HASHES)
    if hashes is None:
        yield Finding("note", f"{folder} is a complete teacher cache without hashes", _OLD)
        return
    damaged = 0
    for name in hashes:
        try:
            cache_format.demand_as_written(folder, manifest, name)
        except UserError as error:
            damaged += 1
            yield Finding("problem", str(error))
    if not damaged:
        yield Finding("fine", f"{folder}: a teacher cache of {len(hashes)} files, all as they were written")


def examine_embeddings(folder: Path) -> Iterator[Finding]:
    """Yield findings on a folder of `embed`; every file is read."""
    try:
        manifest = read_sealed(folder / embed_collection.MANIFEST, embed_collection.SHAPE)
        embed_collection.demand_as_written(folder, manifest)
    except (UserError, OSError) as error:
        yield Finding("problem", str(error))
        return
    if embed_collection.HASHES not in manifest:
        yield Finding("note", f"{folder} holds embeddings without hashes", _OLD)
    elif not manifest["complete"]:
        yield Finding("note", f"{folder} is not complete", "run the command that began it again")
    else:
        rows = ", ".join(f"{count} {side}" for side, count in manifest["rows"].items())
        yield Finding("fine", f"{folder}: {rows}, all as they were written")
