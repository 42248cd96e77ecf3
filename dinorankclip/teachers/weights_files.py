"""Finding and reading a teacher's weights, and saying what to do when they are not there.

Files on this machine are looked at first; the hub is asked only if it answers at all. (Left to themselves, the hub's
libraries try for half a minute before they say that there is no network.)
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from dinorankclip.teachers.registry import at_hand
from dinorankclip.types import UserError, first_line

INSTEAD = f"Without them: {at_hand('image')}."
INSTEAD_TEXT = f"Without it: {at_hand('text')}."
ASK_META = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"
PATIENCE = 3.0  # seconds until the hub counts as unreachable


def local_file(path: str | Path, source: str) -> Path:
    """The file, or a message that names it."""
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"{source}: there is no weights file at {path}. {INSTEAD}")
    return path


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A state dict from .safetensors or a torch file. Never unpickles code; unwraps one level of `model`, `teacher`…"""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: Any = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers have many kinds of complaint, and each means: not a weights file
        raise UserError(f"{path} cannot be read as weights: {first_line(error)}") from error
    if isinstance(tensors, dict):
        for wrapper in ("state_dict", "model", "teacher"):
            if isinstance(tensors.get(wrapper), dict):
                tensors = tensors[wrapper]
    if not isinstance(tensors, dict) or not any(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(f"{path} holds no state dict")
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def complaint(error: Exception) -> str:
    """What a failed load has to say, in one line: the first tensor that is missing, left over or of another shape."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[min(1, len(lines) - 1)][:200]  # the first line of torch's message names the class only


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """sha256 over names, types, shapes and bytes, in the order of the names: the same for the same weights."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def hub_file(repo: str, filename: str, source: str, local: str, gated: bool) -> Path:
    """One file of a hub repository: from the cache of this machine, else downloaded. `local`: how to give a path."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, filename)
    if isinstance(cached, str):
        return Path(cached)
    return Path(_ask_hub(lambda: hf_hub_download(repo, filename), repo, filename, source, local, gated))


def hub_folder(repo: str, source: str, local: str, gated: bool) -> Path:
    """Configuration and safetensors of a hub repository: from the cache of this machine, else downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors"]
    try:
        folder = Path(snapshot_download(repo, allow_patterns=wanted, local_files_only=True))
        if any(folder.glob("*.safetensors")):
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise UserError(
            f"{source}: there is no such folder, and no name on the hub reads like that. {INSTEAD}"
        ) from None
    everything = "config.json, preprocessor_config.json and *.safetensors"
    return Path(
        _ask_hub(lambda: snapshot_download(repo, allow_patterns=wanted), repo, everything, source, local, gated)
    )


def _ask_hub(download: Callable[[], str], repo: str, what: str, source: str, local: str, gated: bool) -> str:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    reason = _why_no_hub()
    if reason is None:
        try:
            return download()
        except GatedRepoError:
            gated, reason = True, "and the hub wants a login that was granted access"
        except RepositoryNotFoundError:
            reason = "and the hub knows no such repository (or hides it from you)"
        except Exception as error:  # network trouble has a dozen exception types, from four libraries
            reason = f"and the download failed ({first_line(error)[:150]})"
    ask = f" They are gated: ask for them at https://huggingface.co/{repo} or {ASK_META}." if gated else ""
    raise UserError(
        f"{source}: no {what} of huggingface.co/{repo} on this machine, {reason}.{ask} "
        f"If you have the weights elsewhere: {local}. {INSTEAD}"
    )


def _why_no_hub() -> str | None:
    """A quick look whether the hub can be reached; through a proxy we cannot look, and let the download try."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or os.environ.get("TRANSFORMERS_OFFLINE", "0").lower() in ("1", "true", "yes"):
        return "and the hub is switched off (HF_HUB_OFFLINE)"
    if any(os.environ.get(name) for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return None
    address = urlparse(constants.ENDPOINT)
    try:
        socket.create_connection((address.hostname, address.port or 443), timeout=PATIENCE).close()
    except OSError:
        return f"and {address.hostname} cannot be reached"
    return None
