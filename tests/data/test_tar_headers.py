"""Headers are read as Python's tarfile reads them; hostile ones cost bounded work and are counted."""

import io
import os
import tarfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dinorankclip import io as files
from dinorankclip.data import tar_headers
from dinorankclip.data.damage import Damage
from dinorankclip.data.streams import stream_shard
from dinorankclip.data.tar_headers import BLOCK, members
from dinorankclip.data.tar_shards import ShardSource, index_shard
from dinorankclip.types import RawSample
from tools.plant_damage import base_256, header, lying, member, pax, photo

END = bytes(2 * BLOCK)
FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
LINKS = [tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.CONTTYPE]


def walked(path):
    with open(path, "rb") as file:
        return list(members(file))


def pair(key, draws=None):
    import random

    return member(f"{key}.jpg", photo(draws or random.Random(key))) + member(f"{key}.txt", b"a red mug")


def outcomes(path):
    """What a reader gets for each sample: its key, and "good" or the cause of its damage."""
    source, results = ShardSource([path]), {}
    for index in range(len(source)):
        try:
            source.read(index)
            results[source.key(index)] = "good"
        except Damage as damage:
            results[source.key(index)] = damage.cause
    return results


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(FORMATS),
    st.lists(
        st.tuples(
            st.text(st.characters(codec="utf-8", exclude_characters="\0/\\"), min_size=1, max_size=40),
            st.integers(0, 150),
            st.integers(0, 2000),
            st.sampled_from(LINKS),
        ),
        max_size=6,
    ),
)
def test_members_are_those_of_tarfile(tmp_path_factory, layout, entries):
    path = tmp_path_factory.mktemp("tar") / "0.tar"
    with tarfile.open(path, "w", format=layout) as tar:
        for stem, more, size, kind in entries:
            info = tarfile.TarInfo(f"{stem}{'n' * more}.jpg")
            info.type, info.size, info.linkname = kind, size if kind != tarfile.SYMTYPE else 0, "elsewhere" * more
            try:
                tar.addfile(info, io.BytesIO(os.urandom(size)) if info.isreg() else None)
            except ValueError:  # USTAR has no place for long names
                continue
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset, m.offset_data, m.size, m.isreg(), None) for m in tar]
    assert [tuple(found) for found in walked(path)] == expected


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=700), st.integers(-(2**95), 2**95 - 1), st.sampled_from(list(b"0LKxXgS15\0")), st.booleans())
def test_places_grow_and_sizes_end_inside_the_file(tmp_path_factory, noise, size, kind, zeros):
    path = tmp_path_factory.mktemp("tar") / "0.tar"
    number = base_256(size % 2**94 if size >= 0 else -(-size % 2**80) - 1)
    hostile = header("b.jpg", number, bytes([kind]))
    path.write_bytes(pair("a") + hostile + noise + bytes(BLOCK) * zeros + hostile + pair("c") + END)
    found = walked(path)
    places = [entry.offset for entry in found]
    assert places == sorted(set(places)) and found[0].name == "a.jpg"
    assert all(0 <= entry.size <= path.stat().st_size for entry in found)
    assert index_shard(path)["image_at"].dtype == np.int64


@pytest.mark.parametrize(
    ("lie", "expected"),
    [
        ("negative size", {"0.tar@{}": "corrupt"}),  # it made the index loop for ever
        ("size of 2**62", {"b": "truncated"}),
        ("size of 2**85", {"b": "truncated"}),
        ("negative size in pax", {"b": "truncated"}),
        ("long name of 2**62", {"0.tar@{}": "corrupt"}),
        ("pax of 2**62", {"0.tar@{}": "corrupt"}),
    ],
)
def test_headers_that_lie_about_sizes_are_counted(tmp_path, lie, expected):
    first = pair("a")
    (tmp_path / "0.tar").write_bytes(first + lying(lie, "b") + pair("c") + END)
    damaged = {key.format(len(first)): cause for key, cause in expected.items()}
    assert outcomes(tmp_path / "0.tar") == {"a": "good", **damaged, "c": "good"}


def test_a_chain_of_long_names_is_no_recursion(tmp_path):
    (tmp_path / "0.tar").write_bytes(pair("a") + member("././@LongLink", b"c.jpg\0", b"L") * 5000 + pair("c") + END)
    assert outcomes(tmp_path / "0.tar") == {"a": "good", "c": "good"}


def test_sparse_members_are_damage(tmp_path):
    sparse = pax(b"GNU.sparse.major", b"1") + member("b.jpg", b"0\n") + member("b.txt", b"a mug")
    old = bytearray(header("d.jpg", BLOCK, b"S"))
    old[482] = 1  # a block of the map follows
    old[148:156] = b" " * 8
    old[148:156] = b"%06o\0 " % sum(old)
    whole = pair("a") + sparse + bytes(old) + bytes(BLOCK) + bytes(BLOCK) + member("d.txt", b"x") + pair("e") + END
    (tmp_path / "0.tar").write_bytes(whole)
    assert outcomes(tmp_path / "0.tar") == {"a": "good", "b": "corrupt", "d": "corrupt", "e": "good"}


def test_members_larger_than_any_image_or_caption_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("dinorankclip.data.tar_shards.CAPTION_BYTES", 20)
    (tmp_path / "0.tar").write_bytes(pair("a") + member("b.jpg", b"x") + member("b.txt", b"y" * 21) + END)
    assert outcomes(tmp_path / "0.tar") == {"a": "good", "b": "too-large"}


def test_nested_captions_are_damage(tmp_path):
    nested = member("b.jpg", b"x") + member("b.json", b"[" * 100_000)
    (tmp_path / "0.tar").write_bytes(pair("a") + nested + END)
    assert outcomes(tmp_path / "0.tar") == {"a": "good", "b": "bad-json"}


@pytest.mark.parametrize("lie", ["negative size", "size of 2**62", "negative size in pax", "long name of 2**62"])
def test_streams_end_with_one_damage(tmp_path, lie):
    """Nothing says where the next header is, and the sample in front of the fault may be half there."""
    (tmp_path / "0.tar").write_bytes(pair("a") + pair("x") + lying(lie, "b") + pair("c") + END)
    first, *_, last = stream_shard(f"pipe:cat {tmp_path}/0.tar")
    assert isinstance(first, RawSample) and first.key == "a"
    assert not isinstance(last, RawSample) and last[1].cause in ("truncated", "missing-image")


def test_work_on_other_data_is_not_stopped_by_an_index(tmp_path, monkeypatch):
    """The lock of an index belongs to its shards."""
    locks = []
    one_at_a_time = files.one_at_a_time
    monkeypatch.setattr(
        "dinorankclip.data.tar_shards.one_at_a_time", lambda *a: locks.append(a[0]) or one_at_a_time(*a)
    )
    for name in "ab":
        (tmp_path / f"{name}.tar").write_bytes(pair(name) + END)
        ShardSource([tmp_path / f"{name}.tar"])
    assert len(set(locks)) == 2


def test_the_search_for_a_header_reads_each_byte_once(tmp_path, monkeypatch):
    """A megabyte of noise behind a wrong size is searched in pieces, not block by block."""
    asked = []
    header_at = tar_headers._header
    monkeypatch.setattr(tar_headers, "_header", lambda file, at: asked.append(at) or header_at(file, at))
    noise = np.random.default_rng(0).integers(1, 48, 1 << 20, np.uint8).tobytes()
    (tmp_path / "0.tar").write_bytes(pair("a") + lying("size of 2**62", "b") + noise + pair("c") + END)
    assert outcomes(tmp_path / "0.tar") == {"a": "good", "b": "truncated", "c": "good"}
    assert len(asked) < 20
