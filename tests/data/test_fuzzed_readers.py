"""Any bytes as a table, a caption, a shard or an image: samples, damage that is counted, or a `UserError`."""

import contextlib
import io
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from dinorankclip.checked_files import UnfitFile, parsed_json, read_object
from dinorankclip.config import FindingSettings
from dinorankclip.data.damage import CAUSES, Damage
from dinorankclip.data.decode import captions_from_json, captions_from_text, decode
from dinorankclip.data.folders_and_tables import TableSource
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.types import UserError
from tools.plant_damage import member

FEW = FindingSettings(max_pixels=1_000_000)
FUZZED = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
CELLS = st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from(
    ['"', '""', "\n", "\0", "a.png", " ", "\ufeff"]
)


@pytest.fixture
def photos(tmp_path):
    Image.new("RGB", (8, 8), "red").save(tmp_path / "a.png")
    return tmp_path


def saved(kind):
    out = io.BytesIO()
    Image.effect_noise((24, 24), 40).convert("RGB").save(out, kind)
    return out.getvalue()


IMAGES = {kind: saved(kind) for kind in ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "PPM")}


def read_all(source):
    """Read every sample; only damage of a known cause may be raised."""
    for index in range(len(source)):
        try:
            sample = source.read(index)
            assert sample.captions and all(caption.strip() for caption in sample.captions)
            decode(sample.image)
        except Damage as damage:
            assert damage.cause in CAUSES


def read_table(path):
    try:
        source = TableSource(path, FEW)
    except UserError as error:
        assert len(str(error)) > 10
    else:
        read_all(source)


@FUZZED
@given(st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=6), st.sampled_from(",;\t"), st.binary(max_size=6))
def test_tables_of_text(photos, rows, delimiter, noise):
    text = delimiter.join(["image", "caption"]) + "\n" + "\n".join(delimiter.join(row) for row in rows)
    data = text.encode()
    for kind, content in (("csv", data), ("csv", data + noise), ("tsv", noise + data)):
        (photos / f"pairs.{kind}").write_bytes(content)
        read_table(photos / f"pairs.{kind}")


@FUZZED
@given(st.data())
def test_parquet(photos, data):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    out = io.BytesIO()
    parquet.write_table(pyarrow.table({"image": ["a.png", None, "b"], "caption": [["x"], [], ["y", None]]}), out)
    content = bytearray(out.getvalue())
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(content)))
    for kept in (content, content[:cut]):
        (photos / "pairs.parquet").write_bytes(kept)
        read_table(photos / "pairs.parquet")


@pytest.mark.filterwarnings("ignore::UserWarning")  # of Pillow, about damaged TIFF
@FUZZED
@given(st.data(), st.sampled_from(sorted(IMAGES)))
def test_images(data, kind):
    content = bytearray(IMAGES[kind])
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=6)):
        content[at] = data.draw(st.integers(0, 255))
    content = bytes(content[: data.draw(st.integers(0, len(content)))]) + data.draw(st.binary(max_size=8))
    try:
        pixels = decode(content)
        assert pixels.ndim == 3 and pixels.size
    except Damage as damage:
        assert damage.cause in CAUSES


LEAVES = st.none() | st.booleans() | st.floats() | st.text(max_size=8)
NAMES = st.sampled_from(["caption", "a", ""])
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


@FUZZED
@given(VALUES | st.binary(max_size=30))
@example(b"[" * 100_000)
@example({"caption": "x"})
def test_captions_and_objects_of_json(tmp_path, value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    for read in (captions_from_json, captions_from_text):
        try:
            assert all(caption.strip() for caption in read(data))
        except Damage as damage:
            assert damage.cause in CAUSES
    (tmp_path / "x.json").write_bytes(data)
    try:
        assert isinstance(read_object(tmp_path / "x.json"), dict)
    except UnfitFile as error:
        assert "x.json" in str(error)
    with contextlib.suppress(ValueError):
        parsed_json(data)


@FUZZED
@given(st.data())
def test_shards(tmp_path_factory, data):
    parts = [member("a.png", IMAGES["PNG"]), member("a.txt", b"a mug"), member("b.json", b'{"caption": "x"}')]
    content = bytearray(b"".join(parts) + bytes(1024))
    for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=6)):
        content[at] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("shards") / "0.tar"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        source = ShardSource([path])
    except UserError as error:
        assert "0.tar" in str(error) or str(path.parent) in str(error)
    else:
        read_all(source)
