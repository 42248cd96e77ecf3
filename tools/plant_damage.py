"""Plant known damage in pairs of every kind of data, and compare the counts of the readers with it.

    python -m tools.plant_damage [--samples 12000] [--seed 0]

Each sample is drawn as good or with one of the faults below, so the number of damaged samples of each cause is known.
Shards, folders, tables and streams are read to their end as evaluation reads them; counts must agree exactly, and good
samples must be those that were written. The program prints a table and ends with status 1 if a count differs.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dinorankclip.types import Source

NESTED = b"[" * 100_000
FILES, TABLES = ("tar", "folder", "stream"), ("csv", "parquet")
READERS = FILES + TABLES
BLOCK = tarfile.BLOCKSIZE


class Fault(NamedTuple):
    """A fault of one sample: what stands in the place of its image or caption, and the cause that is counted."""

    name: str
    cause: str
    image: Callable[[bytes], bytes | None] = lambda data: data
    caption: Callable[[bytes], bytes | None] = lambda text: text
    kind: str = "txt"
    readers: tuple[str, ...] = FILES


FAULTS = (
    Fault("empty image", "empty-image", image=lambda data: b"", readers=READERS),
    Fault("no image format", "not-an-image", image=lambda data: b"hello" * 20, readers=READERS),
    Fault("cut image", "truncated", image=lambda data: data[: len(data) * 2 // 3], readers=READERS),
    Fault("no image", "missing-image", image=lambda data: None, readers=("tar", "stream", *TABLES)),
    Fault("no caption", "no-caption", caption=lambda text: None),
    Fault("blank caption", "empty-caption", caption=lambda text: b" \n\t\n", readers=READERS),
    Fault("caption in Latin-1", "not-utf8", caption=lambda text: "café".encode("latin-1"), readers=(*FILES, "csv")),
    Fault("nested JSON", "bad-json", caption=lambda text: NESTED, kind="json", readers=("tar", "stream")),
    Fault("JSON of a number", "bad-json", caption=lambda text: b"3", kind="json", readers=("tar", "stream")),
)
# Headers that lie about the size of the image behind them; shards alone are read in any order.
LIES = {
    "negative size": "corrupt", "size of 2**62": "truncated", "size of 2**85": "truncated",
    "negative size in pax": "truncated", "long name of 2**62": "corrupt", "pax of 2**62": "corrupt",
}  # fmt: skip


def base_256(number: int) -> bytes:
    """Return a number as it stands in the size field of a tar header, two's complement."""
    return bytes([0o377 if number < 0 else 0o200]) + (number % 256**11).to_bytes(11, "big")


def header(name: str, size: int | bytes = 0, kind: bytes = b"0") -> bytes:
    """Return the header of a member; bytes are put into the size field as they are."""
    info = tarfile.TarInfo(name)
    info.type = kind
    block = bytearray(info.tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = size if isinstance(size, bytes) else b"%011o\0" % size
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def member(name: str, content: bytes, kind: bytes = b"0") -> bytes:
    return header(name, len(content), kind) + content + bytes(-len(content) % BLOCK)


def pax(key: bytes, value: bytes) -> bytes:
    """Return a pax header with one record."""
    record = b" %s=%s\n" % (key, value)
    length = len(record) + len(str(len(record) + 2))
    return member("pax", b"%d%s" % (length, record), b"x")


def lying(name: str, key: str) -> bytes:
    """Return a header with a wrong size; nothing stands behind it."""
    return {
        "negative size": lambda: header(f"{key}.jpg", base_256(-2 * BLOCK)),
        "size of 2**62": lambda: header(f"{key}.jpg", base_256(2**62)),
        "size of 2**85": lambda: header(f"{key}.jpg", base_256(2**85)),
        "negative size in pax": lambda: pax(b"size", b"-5000") + header(f"{key}.jpg", 0),
        "long name of 2**62": lambda: header("././@LongLink", base_256(2**62), b"L"),
        "pax of 2**62": lambda: header("pax", base_256(2**62), b"x"),
    }[name]()


class Planted(NamedTuple):
    """Data with known damage."""

    where: Path
    good: dict[str, bytes]  # key → bytes of the image
    causes: Counter[str]
    faults: Counter[str]


def photo(draws: random.Random) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.frombytes("RGB", (8, 8), draws.randbytes(192)).resize((24, 24)).save(out, "JPEG")
    return out.getvalue()


def plant(reader: str, where: Path, samples: int, seed: int) -> Planted:
    """Write `samples` samples for a reader, about a third of them damaged."""
    draws = random.Random(f"{seed} {reader}")
    fitting = [fault for fault in FAULTS if reader in fault.readers]
    names = [fault.name for fault in fitting] + (list(LIES) if reader == "tar" else [])
    good: dict[str, bytes] = {}
    causes: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    pieces: list[bytes] = []
    rows: list[tuple[str, bytes]] = []  # of a table
    was_lie = False
    for number in range(samples):
        key, image, caption, kind = f"{number:06d}", photo(draws), f"sample {number}".encode(), "txt"
        name = draws.choice(names) if draws.random() < 0.34 else ""
        if name in LIES and was_lie:
            name = ""  # wrong headers side by side are one damaged stretch, which counts once
        was_lie = name in LIES
        if name in LIES:
            pieces.append(lying(name, key))
            causes[LIES[name]] += 1
        else:
            fault = next((fault for fault in fitting if fault.name == name), None)
            if fault is None:
                good[key] = image
            else:
                image, caption, kind = fault.image(image), fault.caption(caption), fault.kind
                causes[fault.cause] += 1
            if reader in TABLES and caption is not None:
                rows.append((f"{key}.jpg", caption))
                caption = None
            for content, end in ((image, "jpg"), (caption, kind)):
                if content is not None and reader in ("folder", *TABLES):
                    (where / f"{key}.{end}").write_bytes(content)
                elif content is not None:
                    pieces.append(member(f"{key}.{end}", content))
        faults[name or "none"] += 1
    if reader in TABLES:
        write_table(where / f"pairs.{reader}", rows)
    elif reader != "folder":
        (where / "0.tar").write_bytes(b"".join(pieces) + bytes(2 * BLOCK))
    return Planted(where, good, causes, faults)


def write_table(path: Path, rows: list[tuple[str, bytes]]) -> None:
    if path.suffix == ".csv":
        path.write_bytes(b"image,caption\n" + b"".join(b'%s,"%s"\n' % (name.encode(), text) for name, text in rows))
        return
    import pyarrow
    import pyarrow.parquet

    columns = {"image": [name for name, _ in rows], "caption": [text.decode() for _, text in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def opened(reader: str, where: Path) -> Source:
    """Open planted data as training would."""
    from dinorankclip.data.folders_and_tables import FolderSource, TableSource
    from dinorankclip.data.tar_shards import ShardSource

    if reader in TABLES:
        return TableSource(where / f"pairs.{reader}")
    return FolderSource(where) if reader == "folder" else ShardSource([where / "0.tar"])


def counted(reader: str, planted: Planted) -> tuple[dict[str, bytes], Counter[str]]:
    """Read the data to its end: good images by key, and damaged samples by cause."""
    from dinorankclip.data.damage import Damage
    from dinorankclip.data.decode import decode
    from dinorankclip.data.streams import stream_shard
    from dinorankclip.types import RawSample

    good: dict[str, bytes] = {}
    causes: Counter[str] = Counter()
    if reader == "stream":
        arriving = list(stream_shard(f"pipe:cat {planted.where / '0.tar'}"))
    else:
        source = opened(reader, planted.where)
        arriving = []
        for index in range(len(source)):
            try:
                arriving.append(source.read(index))
            except Damage as damage:
                arriving.append((source.key(index), damage))
    for sample in arriving:
        try:
            if not isinstance(sample, RawSample):
                raise sample[1]
            decode(sample.image)
            good[sample.key.removesuffix(".jpg")] = sample.image
        except Damage as damage:
            causes[damage.cause] += 1
    return good, causes


def check(reader: str, samples: int, seed: int) -> tuple[Planted, bool]:
    """Plant damage for a reader; return it, and whether the reader counted exactly that."""
    with tempfile.TemporaryDirectory() as scratch:
        planted = plant(reader, Path(scratch), samples, seed)
        good, causes = counted(reader, planted)
        return planted, good == planted.good and causes == planted.causes


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=12_000, help="samples for each reader; a third is damaged")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=None, help="a folder for planted-damage-DATE.json and .md")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home:
        os.environ["DINORANKCLIP_HOME"] = home
        results = {reader: check(reader, options.samples, options.seed) for reader in READERS}
    text, all_exact = results_text(results), all(exact for _, exact in results.values())
    if options.record is None:
        print(text)
    else:
        from bench.harness import today, write_dated

        found = {reader: {"damaged": planted.causes, "exact": exact} for reader, (planted, exact) in results.items()}
        record = {"samples": options.samples, "seed": options.seed, "readers": found}
        write_dated(options.record, "planted-damage", today(), record, f"# Planted damage\n\n{text}")
    sys.exit(not all_exact)


def results_text(results: dict[str, tuple[Planted, bool]]) -> str:
    """Return a table in Markdown, and the number of samples with each fault."""
    lines = ["| reader | samples | damaged | counted exactly |", "| --- | --- | --- | --- |"]
    for reader, (planted, exact) in results.items():
        samples, damaged = planted.faults.total(), planted.causes.total()
        lines.append(f"| {reader} | {samples} | {damaged} | {'yes' if exact else 'NO'} |")
    faults = sum((planted.faults for planted, _ in results.values()), Counter())
    damaged = faults.total() - faults.pop("none", 0)
    counts = ", ".join(f"{name} {count}" for name, count in faults.most_common())
    return "\n".join(lines) + f"\n\n{damaged} damaged samples: {counts}."


if __name__ == "__main__":
    main()
