"""`hub:OWNER/NAME`: a local hub stands in for the real one; nothing is fetched unless --online was given."""

import hashlib
import shutil

import huggingface_hub
import pytest
import torch

from dinorankclip import hub
from dinorankclip.models.export_model import write_export
from dinorankclip.models.folder import load_folder
from dinorankclip.models.hub_model import hub_model
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.foreign_making import clip_folder
from tests.train.test_frozen import model_folder


@pytest.fixture
def local_hub(tmp_path, monkeypatch):
    """A hub whose downloads are copies from a folder; it counts them, and lays blobs out as the real cache does."""
    asked = []
    cache = tmp_path / "cache"

    def snapshot_download(name, revision=None, allow_patterns=(), local_files_only=False):
        folder = cache / name.replace("/", "--") / "snapshots" / (revision or "abc")
        if not folder.is_dir():
            if local_files_only or not (tmp_path / "hub" / name).is_dir():
                raise OSError("not in the cache")
            asked.append(name)
            folder.mkdir(parents=True)
            for pattern in allow_patterns:
                for file in (tmp_path / "hub" / name).glob(pattern):
                    blob = cache / hashlib.sha256(file.read_bytes()).hexdigest()
                    shutil.copyfile(file, blob)
                    (folder / file.name).symlink_to(blob)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setenv(hub.ONLINE, "")
    return tmp_path / "hub", asked


def published(place, form, tmp_path):
    start = tmp_path / "start"
    start.mkdir()
    model_folder(start, seed=3)
    place.parent.mkdir(parents=True, exist_ok=True)
    write_export(str(start), place, (form,))
    return load_folder(start)


@pytest.mark.parametrize("form", ["folder", "open-clip"])
def test_a_repository_is_fetched_once_and_only_when_asked(form, local_hub, tmp_path, monkeypatch):
    place, asked = local_hub
    model = published(place / "owner" / "small", form, tmp_path)
    with pytest.raises(UserError, match="nothing is downloaded unless you ask"):
        hub_model("hub:owner/small")
    assert asked == []
    monkeypatch.setenv(hub.ONLINE, "1")
    found, note = hub_model("hub:owner/small")
    assert asked == ["owner/small"] and "revision abc" in note and "sha256 " in note and "MB" in note
    for name, tensor in model.trunk.state_dict().items():
        assert torch.equal(tensor, found.trunk.state_dict()[name])
    monkeypatch.setenv(hub.ONLINE, "")
    with pytest.warns(UserWarning, match="sha256"):
        assert load_model("hub:owner/small", device="cpu").dim == model.dim
    assert asked == ["owner/small"]


def test_transformers_repositories_open_too(local_hub, monkeypatch):
    place, _ = local_hub
    (place / "owner").mkdir(parents=True)
    clip_folder(place / "owner" / "clip")
    monkeypatch.setenv(hub.ONLINE, "1")
    assert hub_model("hub:owner/clip")[0].dim == 24


def test_a_damaged_copy_and_pickles_are_refused(local_hub, tmp_path, monkeypatch):
    place, _ = local_hub
    published(place / "owner" / "small", "open-clip", tmp_path)
    monkeypatch.setenv(hub.ONLINE, "1")
    hub_model("hub:owner/small")
    weights = next((tmp_path / "cache").rglob("*.safetensors")).resolve()
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(UserError, match="the hub's SHA-256 is"):
        hub_model("hub:owner/small")
    (place / "owner" / "pickled").mkdir()
    (place / "owner" / "pickled" / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError, match="no safetensors"):
        hub_model("hub:owner/pickled")
    for name in ("hub:small", "hub:../x", "hub:"):
        with pytest.raises(UserError, match="expected hub:OWNER/NAME"):
            hub_model(name)
