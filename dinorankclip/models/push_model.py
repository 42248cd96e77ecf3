"""Uploads an export to a hub: `dinorankclip --online push`.

The folder is made anew by export_model.py in a temporary place, so that it holds what an export holds and nothing else
of this machine. Before anything is sent, the card's metadata are checked here as the hub checks them, and every text
file is searched for paths of this machine. The token belongs to huggingface_hub, which reads it itself.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

from dinorankclip.hub import is_repository
from dinorankclip.json_shape import TEXT, entries, fault, kind, listed, word
from dinorankclip.models.card import HUB_LICENCES, PIPELINE
from dinorankclip.models.export_files import CARD
from dinorankclip.models.export_model import write_export
from dinorankclip.types import UserError, first_line

_TEXTS = (".json", ".md", ".py", ".js", ".html", ".css", ".sha256")
_LARGE_TEXTS = ("tokenizer.json", "tokens.json")  # vocabularies, of no machine
_TAG = kind("a tag", lambda value: isinstance(value, str) and re.fullmatch(r"[\w.:/+-]{1,64}", value) is not None)
# What the hub demands of the metadata of a model.
METADATA = entries(
    {
        "library_name": kind("a name", lambda value: isinstance(value, str) and value == value.strip() and value != ""),
        "pipeline_tag": word(PIPELINE),
        "license": kind("a licence that the hub knows, or 'other'", lambda value: value in HUB_LICENCES),
        "license_name": TEXT,
        "tags": listed(_TAG, 1),
    },
    required=("library_name", "pipeline_tag", "license", "tags"),
    closed=True,
)


def push_model(
    where: str, name: str, form: str = "folder", private: bool = True, data_note: str = "", licence: str = "",
    message: str = "",
) -> str:  # fmt: skip
    """Export the model a user calls `where`, upload it as `name`; return a summary."""
    if "/" not in name or not is_repository(name):
        raise UserError(f"{name} is no name of a repository: expected OWNER/NAME")
    with tempfile.TemporaryDirectory(prefix="dinorankclip-push-") as place:
        folder = Path(place) / name.partition("/")[2]
        written = write_export(where, folder, (form,), data_note, licence)
        check_card(folder / CARD)
        refuse_traces(folder)
        summary = written.summary().replace(f"{place}{os.sep}", "")
        print(f"sending to {name}:\n{summary}")
        address = _upload(folder, name, private, message or f"Model {written.identity[:12]}")
    return f"uploaded to {address}"


def _upload(folder: Path, name: str, private: bool, message: str) -> str:
    from huggingface_hub import HfApi

    try:
        hub = HfApi()
        made = hub.create_repo(name, private=private, exist_ok=True, repo_type="model")
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message=message, repo_type="model")
    except Exception as error:  # the hub's and the network's errors have no common type
        raise UserError(f"{name} could not be uploaded: {first_line(error)}") from error
    return str(made)


def metadata_of(card: str) -> dict[str, Any]:
    """Return the metadata at the top of a card."""
    import yaml

    found = re.match(r"---\n(.*?)\n---\n", card, re.DOTALL)
    if found is None:
        raise UserError("the card has no metadata: its first line must be ---")
    try:
        values = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise UserError(f"the card's metadata are no YAML: {first_line(error)}") from error
    if not isinstance(values, dict):
        raise UserError("the card's metadata hold no names with values")
    return values


def check_card(path: Path) -> None:
    """Refuse a card that the hub would refuse. (The hub's own check needs the network.)"""
    values = metadata_of(path.read_text(encoding="utf-8"))
    if text := fault(values, METADATA):
        raise UserError(f"{path.name} would be refused by the hub: {text}")


def refuse_traces(folder: Path) -> None:
    """Refuse a folder whose texts name the user's own folders, or that holds a link."""
    secret = {str(path) for path in (Path.home(), Path.cwd(), Path(tempfile.gettempdir()))} - {"/"}
    secret |= {value for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") if (value := os.environ.get(name))}
    for file in sorted(folder.rglob("*")):
        if file.is_symlink():
            raise UserError(f"{file.name} is a link, and links are not sent")
        if not file.is_file() or file.suffix not in _TEXTS or file.name in _LARGE_TEXTS:
            continue
        text = file.read_text(encoding="utf-8")
        if any(part in text for part in secret):
            raise UserError(f"{file.relative_to(folder)} names a folder of this machine: nothing was sent")
