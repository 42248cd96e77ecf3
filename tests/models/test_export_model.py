"""Exports give the embeddings of the model they were made of, in this program, in open_clip and in onnxruntime."""

import json
import os
import subprocess
import sys

import open_clip
import pytest
import torch
import torch.nn.functional as F

from dinorankclip import io
from dinorankclip.models.export_model import export_place, write_export
from dinorankclip.models.loaded import load_model
from dinorankclip.models.students import SHAPES, Shape
from dinorankclip.types import UserError
from tests.models.model_making import CAPTIONS, photo, saved, small_model
from tests.systems import POSIX

FILES = {
    "README.md",
    "bpe_simple_vocab_16e6.txt.gz",
    "checksums.sha256",
    "model.json",
    "model.safetensors",
    "preprocess.json",
    "provenance.json",
    "vocabulary.json",
}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("source") / "fused", small_model("full", seed=2))


# Another process, another folder, no sockets: what a user has who was given the folder.
ELSEWHERE = """
import socket, sys, torch
socket.socket = None
from dinorankclip import load_model
model = load_model("given")
images = torch.stack([model.preprocess("photo.png")])
torch.save([model.identity, model.encode_image(images), model.encode_text(%r)], "rows.pt")
"""


def test_a_folder_given_away_works_elsewhere_without_a_network(source, tmp_path):
    write_export(str(source), tmp_path / "given", ["folder"])
    assert {path.name for path in (tmp_path / "given").iterdir()} == FILES
    photo().save(tmp_path / "photo.png")
    env = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    run = [sys.executable, "-c", ELSEWHERE % CAPTIONS]
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    identity, image, text = torch.load(tmp_path / "rows.pt")
    model = load_model(source)
    assert identity == model.identity
    torch.testing.assert_close(image, model.encode_image(model.preprocess(photo())[None]), atol=1e-5, rtol=0)
    torch.testing.assert_close(text, model.encode_text(CAPTIONS), atol=1e-5, rtol=0)


def test_an_export_of_an_export_is_the_same_and_remembers(source, tmp_path):
    first = write_export(str(source), tmp_path / "first", ["folder"], data_note="drawn")
    again = write_export(str(tmp_path / "first"), tmp_path / "again", ["folder"])
    assert first.identity == again.identity
    for name in ("model.json", "model.safetensors", "preprocess.json", "vocabulary.json", "provenance.json"):
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert "- note: drawn" in (tmp_path / "again" / "README.md").read_text()
    assert "model.safetensors" in first.summary() and first.identity in first.summary()


def test_open_clip_loads_the_trunk_and_gives_its_features(source, tmp_path):
    written = write_export(str(source), tmp_path / "trunk", ["open-clip"])
    towers, _, transform = open_clip.create_model_and_transforms(f"local-dir:{tmp_path / 'trunk'}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tmp_path / 'trunk'}")
    towers.eval()
    model = load_model(source)
    seen, read = model.look(model.preprocess(photo())[None]), model.read(CAPTIONS)
    same_pixels = model.parts.normalised(model.preprocess(photo())[None])
    with torch.no_grad():
        exact = F.normalize(towers.encode_image(same_pixels), dim=-1)
        own = F.normalize(towers.encode_image(transform(photo())[None]), dim=-1)
        texts = F.normalize(towers.encode_text(tokenizer(CAPTIONS)), dim=-1)
    torch.testing.assert_close(exact, seen.contrastive, atol=1e-6, rtol=0)
    torch.testing.assert_close(texts, read.contrastive, atol=1e-6, rtol=0)
    # Its own preprocessing resizes by Pillow: pixels differ by a level at most.
    torch.testing.assert_close(own, seen.contrastive, atol=2e-3, rtol=0)
    # The trunk is not the whole model, and everybody is reported.
    assert "trunk alone, not the whole model" in written.remarks[0] and "°" in written.remarks[0]
    card = (tmp_path / "trunk" / "README.md").read_text()
    assert "trunk alone, not the whole model" in card and "Students:" not in card


def test_a_trunk_that_is_the_whole_model_comes_back_as_itself(tmp_path):
    source = saved(tmp_path / "plain", small_model(seed=2))
    written = write_export(str(source), tmp_path / "trunk", ["open-clip"], licence="mit")
    assert written.remarks == []
    back = load_model(f"open_clip:{tmp_path / 'trunk'}")
    assert back.identity == written.identity == load_model(source).identity


def test_onnx_graphs_agree_with_pytorch(tmp_path, monkeypatch):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    monkeypatch.setitem(SHAPES, "vit-micro", Shape(32, 1, 1, patch=8))  # tracing takes its time for every layer
    source = saved(tmp_path / "shallow", small_model("full", seed=2))
    written = write_export(str(source), tmp_path / "all", ["folder", "onnx"])
    described = json.loads((tmp_path / "all" / "onnx" / "onnx.json").read_text())
    assert described["image.onnx"]["difference"] < 1e-5 and described["text.onnx"]["difference"] < 1e-5
    assert sum("differs from PyTorch by at most" in remark for remark in written.remarks) == 2
    assert {path.name for path in (tmp_path / "all").iterdir()} == FILES | {"onnx"}
    model = load_model(tmp_path / "all")
    images = torch.stack([model.preprocess(photo(number)) for number in range(3)])
    ids = model.tokenizer(CAPTIONS, full=True)
    for file, name, inputs, expected in (
        ("image.onnx", "images", images, model.encode_image(images)),
        ("text.onnx", "ids", ids, model.encode_text(CAPTIONS)),
    ):
        session = onnxruntime.InferenceSession(tmp_path / "all" / "onnx" / file, providers=["CPUExecutionProvider"])
        found = torch.from_numpy(session.run(None, {name: inputs.numpy()})[0])
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=0)


def test_an_export_is_whole_or_absent(source, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="no format is called 'zip'"):
        write_export(str(source), out, ["zip"])
    with pytest.raises(UserError, match="holds no model"):
        write_export(str(tmp_path / "nowhere"), out, ["folder"])
    assert list(tmp_path.iterdir()) == []
    write_export(str(source), out, ["folder"])
    before = (out / "README.md").read_text()
    with pytest.raises(UserError, match="or --replace it"):
        write_export(str(source), out, ["folder"])
    with pytest.raises(ZeroDivisionError), export_place(out, True, "provenance.json") as aside:
        (aside / "half").write_text("x")
        raise ZeroDivisionError
    assert (out / "README.md").read_text() == before
    write_export(str(source), out, ["open-clip"], replace=True)
    assert not (out / "model.json").exists() and (out / "open_clip_config.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_an_older_export_is_back_where_the_new_one_could_not_take_its_place(source, tmp_path, monkeypatch):
    out, rename = tmp_path / "out", os.replace
    write_export(str(source), out, ["folder"])

    def replace(old, new):
        if str(old).endswith(".unfinished"):
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(io, "_exchanged", lambda one, other: False)  # a system that cannot exchange two folders
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises((OSError, UserError)):
        write_export(str(source), out, ["open-clip"], replace=True)
    monkeypatch.undo()
    assert (out / "model.json").is_file() and [path.name for path in tmp_path.iterdir()] == ["out"]


@POSIX
def test_a_linked_folder_is_written_where_it_points_with_the_users_own_rights(source, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "latest").symlink_to(tmp_path / "disk")
    before = os.umask(0o077)
    try:
        for replace in (False, True):
            write_export(str(source), tmp_path / "latest", ["folder"], replace=replace)
    finally:
        os.umask(before)
    assert (tmp_path / "latest").is_symlink() and (tmp_path / "disk" / "model.json").is_file()
    assert (tmp_path / "disk").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "disk" / "model.json").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk", "latest"]


def test_what_was_not_exported_is_never_replaced(source, tmp_path):
    (tmp_path / "holiday").mkdir()
    (tmp_path / "holiday" / "photo.jpg").write_text("precious")
    for replace in (False, True):
        with pytest.raises(UserError, match="is no exported model; choose another --out"):
            write_export(str(source), tmp_path / "holiday", ["folder"], replace=replace)
    assert (tmp_path / "holiday" / "photo.jpg").read_text() == "precious"
    (tmp_path / "empty").mkdir()
    write_export(str(source), tmp_path / "empty", ["folder"])
