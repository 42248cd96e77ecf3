"""Data that fuzz_inputs.py damages, and the readers of each: shards, tables, lists, captions, images, sets."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from dinorankclip.config import FindingSettings
from dinorankclip.data.benchmark_sets import SetLocation, open_set
from dinorankclip.data.damage import Damage
from dinorankclip.data.decode import decode, read_header
from dinorankclip.data.folders_and_tables import FolderSource, TableSource
from dinorankclip.data.open_data import open_captions, open_images
from dinorankclip.data.scenes.scene import holds_scenes
from dinorankclip.data.second_captions import _of_file
from dinorankclip.data.streams import stream_shard
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.types import RawSample
from tools.fuzz_inputs import Kind
from tools.plant_damage import member

IMAGES = ("jpg", "png", "webp", "gif", "tiff", "bmp", "ppm")
_FEW = FindingSettings(max_pixels=1_000_000)
_tokenizer = Tokenizer()


def prepare_data(folder: Path) -> None:
    """Write small examples under `folder`/data."""
    data = folder / "data"
    (data / "set" / "test").mkdir(parents=True)
    noise = random.Random(0).randbytes(3 * 32 * 32)
    for kind in IMAGES:
        Image.frombytes("RGB", (32, 32), noise).save(data / f"image.{kind}")
    jpeg = (data / "image.jpg").read_bytes()
    (data / "image.txt").write_text("a red mug\nthe mug is red\n")
    rows = "".join(f'image.{kind},"a red {kind}, number {kind}"\n' for kind in IMAGES)
    (data / "pairs.csv").write_text("image,caption\n" + rows)
    (data / "list.txt").write_text("\n".join(f"image.{kind}" for kind in IMAGES))
    lines = (f'{{"key": "{kind}", "caption": "another {kind}"}}\n' for kind in IMAGES)
    (data / "second.jsonl").write_text("".join(lines))
    tar = b"".join(
        member(f"{key}.jpg", jpeg) + member(f"{key}.json", b'{"caption": "a mug"}') + member(f"{key}.cls", b"1")
        for key in "abcd"
    )
    for place in ("pairs.tar", "set/test/0.tar"):
        (data / place).write_bytes(tar + bytes(1024))
    (data / "set" / "classnames.txt").write_text("cat\ndog\n")
    (data / "set" / "families.json").write_text('{"pets": ["cat", "dog"]}')
    with contextlib.suppress(ImportError):
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.table({"image": [f"image.{k}" for k in IMAGES], "caption": [["a", k] for k in IMAGES]})
        pyarrow.parquet.write_table(table, data / "pairs.parquet")


def _samples(source: Any) -> list[Any]:
    """Read, decode and tokenize every sample; a damaged one is its cause."""
    results = []
    for index in range(len(source)):
        results.append(_sample(source, index))
    return results


def _sample(source: Any, index: int) -> Any:
    try:
        raw = source.read(index) if hasattr(source, "read") else RawSample(source.key(index), source.image(index), ())
        header = read_header(raw.image, _FEW.max_pixels)
        ids = [_tokenizer.encode(caption) for caption in raw.captions]
        return raw.key, decode(raw.image, header).shape, ids
    except Damage as damage:
        return source.key(index), damage.cause


def _streamed(folder: Path) -> Any:
    arrived = stream_shard(f"pipe:cat '{folder / 'data' / 'pairs.tar'}'")
    return [sample.key if isinstance(sample, RawSample) else sample[1].cause for sample in arrived]


def _set(folder: Path) -> Any:
    benchmark = open_set(SetLocation("set", str(folder / "data" / "set"), _FEW))
    source = benchmark.open("test")
    return benchmark.class_names, benchmark.families, source.labels.tolist(), _samples(source)  # type: ignore[attr-defined]


def _captions(path: Path) -> Any:
    source = open_captions(path)
    results = []
    for index in range(len(source)):
        with contextlib.suppress(Damage):
            results.append([_tokenizer.encode(caption) for caption in source.captions(index)])
    return results


def _shard(data: Path) -> Any:
    return _samples(ShardSource([data / "pairs.tar"])), holds_scenes([data / "pairs.tar"])


def _parquet(data: Path) -> Any:
    return _samples(TableSource(data / "pairs.parquet", _FEW))


def _of_data(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    return lambda folder: read(folder / "data")


def data_kinds(folder: Path) -> list[Kind]:
    """Return the kinds of data that were prepared in `folder`."""
    kinds = [
        Kind("data/pairs.tar", _of_data(_shard)),
        Kind("data/pairs.tar", _streamed),
        Kind("data/pairs.csv", _of_data(lambda data: _samples(TableSource(data / "pairs.csv", _FEW)))),
        Kind("data/pairs.csv", _of_data(lambda data: _captions(data / "pairs.csv"))),
        Kind("data/list.txt", _of_data(lambda data: _samples(open_images(data / "list.txt", _FEW)))),
        Kind("data/list.txt", _of_data(lambda data: _captions(data / "list.txt"))),
        Kind("data/second.jsonl", _of_data(lambda data: _of_file(data / "second.jsonl")("jpg"))),
        Kind("data/image.txt", _of_data(lambda data: _samples(FolderSource(data))[0])),
        Kind("data/set/classnames.txt", _set),
        Kind("data/set/families.json", _set),
        Kind("data/set/test/0.tar", _set),
        *(Kind(f"data/image.{kind}", _of_data(lambda data: _samples(FolderSource(data)))) for kind in IMAGES),
    ]  # fmt: skip
    if (folder / "data" / "pairs.parquet").exists():
        kinds.append(Kind("data/pairs.parquet", _of_data(_parquet)))
    return kinds
