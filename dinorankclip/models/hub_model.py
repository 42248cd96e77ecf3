"""Opens `hub:OWNER/NAME[@REVISION]`: a repository with a model folder of this package, of open_clip or of transformers.

Files come from the local hub cache; after `--online` missing ones are fetched, and each is named with its size and its
SHA-256. Weights are safetensors alone; no code and no pickle is fetched. The hub knows the SHA-256 of large files, and
names its cached copies by it: a copy with another hash is refused.
"""

from __future__ import annotations

import re
from pathlib import Path

from dinorankclip import hub
from dinorankclip.checksums import file_hash
from dinorankclip.models import open_clip_weights, transformers_weights
from dinorankclip.models.folder import CONFIG, OPEN_CLIP_CONFIG, load_folder
from dinorankclip.models.joint import JointModel
from dinorankclip.types import UserError

PREFIX = "hub:"
FILES = ("*.json", "*.safetensors", "*.sha256", "merges.txt")
_HASH = re.compile(r"[0-9a-f]{64}")


def hub_model(where: str) -> tuple[JointModel, str]:
    """Return the trunk of a repository, and what was read: revision, files, hashes."""
    name, _, revision = where.removeprefix(PREFIX).partition("@")
    if "/" not in name or not hub.is_repository(name):
        raise UserError(f"{where}: expected hub:OWNER/NAME, or hub:OWNER/NAME@REVISION")
    folder = hub.cached_folder(name, FILES, revision or None)
    if folder is None:
        raise UserError(
            f"{where}: the local hub cache has no such repository, and nothing is downloaded unless you ask: "
            "dinorankclip --online VERB … fetches it"
        )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        elsewhere = (
            "" if hub.online() else ", as far as it is cached here (dinorankclip --online VERB … fetches the rest)"
        )
        raise UserError(f"{where} holds no safetensors{elsewhere}; other weights are not read from a hub")
    note = f"{name} at revision {folder.name}: {', '.join(map(_checked, weights))}"
    if (folder / CONFIG).is_file():
        model = load_folder(folder)
        if not isinstance(model, JointModel):
            raise UserError(f"{where} is an aligned model, whose towers a hub may not name: download its folder")
        return model, note
    if (folder / OPEN_CLIP_CONFIG).is_file():
        return open_clip_weights.open_clip_model(f"{open_clip_weights.PREFIX}{folder}")[0], note
    if (folder / transformers_weights.CONFIG).is_file():
        return transformers_weights.transformers_model(f"{transformers_weights.PREFIX}{folder}"), note
    raise UserError(
        f"{where} has neither {CONFIG} nor {OPEN_CLIP_CONFIG} nor {transformers_weights.CONFIG}: no model that is "
        "known here"
    )


def _checked(path: Path) -> str:
    """Return name, size and hash of a file; refuse a copy that is not what the hub has. The cache names the copies of
    large files by their SHA-256; other files, and files that were put there by hand, have another name."""
    found, blob = file_hash(path.resolve()), path.resolve().name
    if _HASH.fullmatch(blob) and blob != found:
        raise UserError(f"{path} is damaged: the hub's SHA-256 is {blob}; delete it and fetch it again with --online")
    return f"{path.name}, {path.stat().st_size / 1e6:.1f} MB, sha256 {found}"
