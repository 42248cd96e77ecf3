"""Finds and reads the weights of teachers, and tells users what to do when weights are missing.

Files on this machine come first. The hub is asked only if the user allows it (`dinorankclip --online …`) and if it
answers at all: left to themselves, its libraries try for half a minute before they report that there is no network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import Tensor

from dinorankclip.checked_files import open_regular
from dinorankclip.device import declare_missing
from dinorankclip.extras import naming_extras
from dinorankclip.hub import ONLINE, online
from dinorankclip.teachers.registry import fallbacks
from dinorankclip.types import UserError, first_line

INSTEAD = f"Without them: {fallbacks('image')}."
INSTEAD_TEXT = f"Without it: {fallbacks('text')}."
ASK_META = "https://ai.meta.com/resources/models-and-libraries/dinov3-downloads/"
PATIENCE = 3.0  # seconds until the hub counts as unreachable


def local_file(path: str | Path, source: str) -> Path:
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"{source}: there is no weights file at {path}. {INSTEAD}")
    return path


def package_folder(package: str, missing: str) -> Path:
    """Return the folder of an installed package without importing it, or raise the message `missing`."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.origin:
        raise UserError(missing)
    return Path(spec.origin).parent


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a state dict from .safetensors or a torch file, perhaps wrapped in `model` or so. Unpickles no code."""
    try:
        os.close(open_regular(path))
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            tensors: Any = load_file(path)
        else:
            tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both readers raise many types of errors, and each means: not a weights file
        raise UserError(f"{path} cannot be read as weights: {first_line(error)}") from error
    if isinstance(tensors, dict):
        for wrapper in ("state_dict", "model", "teacher"):
            if isinstance(tensors.get(wrapper), dict):
                tensors = tensors[wrapper]
    if not isinstance(tensors, dict) or not any(isinstance(value, Tensor) for value in tensors.values()):
        raise UserError(f"{path} holds no state dict")
    return {name: value for name, value in tensors.items() if isinstance(value, Tensor)}


def complaint(error: Exception) -> str:
    """Shorten a failed load to one line: the first tensor that is missing, left over or of another shape."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[min(1, len(lines) - 1)][:200]  # the first line of torch's message names the class only


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 over names, types, shapes and bytes, in the order of the names."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data if tensor.numel() else b"")
    return digest.hexdigest()


def from_pretrained(class_name: str, folder: Path, source: str, needs: str, **options: Any) -> tuple[Any, Any]:
    """Load a network of transformers from a local folder. Also return the names of tensors that did not fit.

    The progress bar and load report of transformers are switched off: callers judge the names themselves.
    `needs` completes the message "SOURCE needs …" where transformers is too old.
    """
    declare_missing()
    with naming_extras(source):
        import transformers
        from transformers.utils import logging
    try:
        network = getattr(transformers, class_name)
    except AttributeError as error:
        raise UserError(f"{source} needs {needs}") from error
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        return network.from_pretrained(
            folder,
            local_files_only=True,
            output_loading_info=True,
            use_safetensors=True,
            trust_remote_code=False,
            **options,
        )
    except (OSError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{source}: {folder} cannot be loaded: {first_line(error)}") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def hub_file(repo: str, filename: str, source: str, local: str, licence: str = "") -> Path:
    """Return a file of a hub repository that needs no login, from the cache of this machine or downloaded.

    `local` shows users how to name a file of their own; `licence` names terms other than an open-source licence.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    cached = try_to_load_from_cache(repo, filename)
    if isinstance(cached, str):
        return Path(cached)
    terms = f" They are published without a gate, under {licence}." if licence else ""
    return Path(_download(lambda: hf_hub_download(repo, filename), repo, filename, source, local, terms))


def hub_folder(repo: str, source: str, local: str, gated: bool) -> Path:
    """Return a folder with configuration and safetensors of a hub repository, from the cache or downloaded."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors"]
    try:
        folder = Path(snapshot_download(repo, allow_patterns=patterns, local_files_only=True))
        if any(folder.glob("*.safetensors")):
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise UserError(
            f"{source}: there is no such folder, and no name on the hub reads like that. {INSTEAD}"
        ) from None
    files, terms = "config.json, preprocessor_config.json and *.safetensors", _ask(repo) if gated else ""
    return Path(_download(lambda: snapshot_download(repo, allow_patterns=patterns), repo, files, source, local, terms))


def _ask(repo: str) -> str:
    return f" They are gated: ask for them at https://huggingface.co/{repo} or {ASK_META}."


def _download(download: Callable[[], str], repo: str, files: str, source: str, local: str, terms: str) -> str:
    """Download files, or say why that failed. `terms`: a sentence on how the weights are published."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    reason = _unreachable_hub()
    if reason is None:
        try:
            return download()
        except GatedRepoError:
            terms, reason = _ask(repo), "and the hub wants a login that was granted access"
        except RepositoryNotFoundError:
            reason = "and the hub knows no such repository (or hides it from you)"
        except Exception as error:  # network trouble has a dozen exception types, from four libraries
            reason = f"and the download failed ({first_line(error)[:150]})"
    raise UserError(
        f"{source}: no {files} of huggingface.co/{repo} on this machine, {reason}.{terms} "
        f"If you have the weights elsewhere: {local}. {INSTEAD}"
    )


def _unreachable_hub() -> str | None:
    """Return the reason if the hub cannot be reached. Behind a proxy only a download can tell, so it may try."""
    from huggingface_hub import constants

    if not online():
        return f"and nothing is downloaded unless you ask for it: dinorankclip --online … (or {ONLINE}=1)"
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
