"""Decides whether hub libraries may use the network: only after `dinorankclip --online VERB …`.

Nothing else in this package opens a connection, apart from `pipe:` data and shards by URL that a user types.
Set the environment before the first import of open_clip, timm, transformers or huggingface_hub, which read it once.

`cached_file` and `cached_folder` find what the local hub cache holds, and download it only after `--online`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from dinorankclip.types import UserError, first_line

ONLINE = "DINORANKCLIP_ONLINE"
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")


def online() -> bool:
    """Return whether the user asked for downloads, by the flag or by the environment variable behind it."""
    return os.environ.get(ONLINE, "").lower() in ("1", "true", "yes")


def stay_offline() -> None:
    """Switch hub libraries off, unless the user asked for downloads. Variables that the user has set stay."""
    if not online():
        for name in _OFFLINE:
            os.environ.setdefault(name, "1")


def is_repository(name: str) -> bool:
    """Return whether a name can be a repository of the hub: `owner/name`, or an old name without owner."""
    return bool(_REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def cached_file(repository: str, names: Sequence[str]) -> Path | None:
    """Return the first of some files of a repository that the local cache holds, or, online, that the hub has."""
    stay_offline()
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    for name in names:
        if isinstance(path := try_to_load_from_cache(repository, name), str):
            return Path(path)
    if not online():
        return None
    reasons = []
    for name in names:
        try:
            return Path(hf_hub_download(repository, name))
        except Exception as error:  # the hub's and the network's errors have no common type
            reasons.append(first_line(error))
    raise UserError(f"{repository} could not be fetched from the hub: {reasons[-1]}")


def cached_folder(repository: str, patterns: Sequence[str], revision: str | None = None) -> Path | None:
    """Return the local copy of a repository, files that fit `patterns` alone; online it is fetched if need be."""
    stay_offline()
    from huggingface_hub import snapshot_download

    try:
        local = not online()
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=list(patterns), local_files_only=local)
        )
    except Exception as error:  # as above
        if online():
            raise UserError(f"{repository} could not be fetched from the hub: {first_line(error)}") from error
        return None
