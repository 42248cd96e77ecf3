"""Shards by URLs: the pairs of local shards, whatever share of requests fails; clear errors where nothing helps."""

import json
import sys
import time

import fsspec
import numpy as np
import pytest
from pair_making import good_members, write_set, write_tar
from stand_in import StandIn

from dinorankclip.config import FindingSettings, ReadingSettings
from dinorankclip.data import remote
from dinorankclip.data.damage import Damage
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_captions, open_images, open_pairs, splits_of
from dinorankclip.data.paths import is_url, refuse_missing, shown_url
from dinorankclip.data.remote import RemoteShard
from dinorankclip.extras import MissingPackage
from dinorankclip.run_files import refuse_command
from dinorankclip.types import ImageSpec, UserError


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_WAIT", 0.001)
    monkeypatch.setattr(remote, "LONGEST_WAIT", 0.01)
    remote._files_of.cache_clear()


@pytest.fixture
def store(tmp_path):
    pytest.importorskip("aiohttp")
    for part, count in (("train", 24), ("test", 6)):
        write_set(tmp_path / "bucket" / "set", part=part, count=count, shards=3)
    with StandIn(tmp_path, failing=0.05, seed=3) as server:
        yield server
        server.shutdown()


def everything(source):
    return [(source.key(i), source.image(i), source.captions(i)) for i in range(len(source))]


def test_pairs_by_url_are_those_of_local_shards(store, tmp_path):
    local = open_pairs(tmp_path / "bucket/set/train", split="all")
    for where in (
        "train",
        "train/{0..2}.tar",
        "train/*.tar",
        f"train/0.tar::{store.url}/bucket/set/train/{{1..2}}.tar",
    ):
        found = open_pairs(f"{store.url}/bucket/set/{where}", split="all")
        assert found.fingerprint == local.fingerprint and everything(found) == everything(local), where
        assert [found.read(i) for i in range(24)] == [local.read(i) for i in range(24)]
    assert splits_of(f"{store.url}/bucket/set") == ("train", "test")
    assert len(open_pairs(f"{store.url}/bucket/set", split="test")) == 6
    assert len(open_images(f"{store.url}/bucket/set/test")) == 6
    assert open_captions(f"{store.url}/bucket/set", split="test").captions(1)
    assert store.faults > 3, "some requests have failed"
    with pytest.raises(UserError, match=r"divided into parts: name the folder of one, as .*/bucket/set/train"):
        open_images(f"{store.url}/bucket/set")


def test_batches_and_the_validation_cut_are_those_of_local_shards(store, tmp_path, tokenizer):
    def batches(where, start):
        source, reading = open_pairs(where, FindingSettings(val_fraction=0.2)), ReadingSettings(workers=0)
        loader = PairLoader(source, ImageSpec(16), tokenizer, batch=4, seed=1, reading=reading, start=start)
        iterator = iter(loader)
        return [next(iterator) for _ in range(6)]

    shards = "bucket/set/train/{0..2}.tar"
    whole, again = batches(f"{tmp_path}/{shards}", 0), batches(f"{store.url}/{shards}", 3)
    for one, other in zip(whole[3:], again):
        assert one.keys == other.keys and one.captions == other.captions and not other.damage
        assert (one.images == other.images).all() and (one.texts == other.texts).all()


def test_a_pair_is_one_request_and_an_index_few(tmp_path):
    pytest.importorskip("aiohttp")
    write_tar(tmp_path / "a.tar", good_members(30))
    with StandIn(tmp_path) as server:
        source = open_pairs(f"{server.url}/a.tar", split="all")
        assert len(server.ranges) <= 3, "both ends for the fingerprint, then the whole, which is smaller than a window"
        server.ranges.clear()
        source.read(7)
        assert len(server.ranges) == 1
        open_pairs(f"{server.url}/a.tar", split="all")
        assert len(server.ranges) == 1, "the table of contents is stored"
        server.shutdown()


def test_a_changed_object_is_noticed(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    path = write_tar(tmp_path / "a.tar", good_members(6))
    with StandIn(tmp_path) as server:
        source = open_pairs(f"{server.url}/a.tar", split="all")
        first = everything(source)
        data = bytearray(path.read_bytes())
        data[700] ^= 1
        path.write_bytes(data)
        assert everything(source)[1:] == first[1:], "for a while nobody looks"
        monkeypatch.setattr(remote, "LOOK_AGAIN", 0.0)
        with pytest.raises(UserError, match="has changed while it was read"):
            source.read(0)
        assert everything(open_pairs(f"{server.url}/a.tar", split="all"))[0] != first[0], "another table of contents"
        path.write_bytes(data[:5000])
        monkeypatch.setattr(remote, "LOOK_AGAIN", 900.0)
        with pytest.raises(UserError, match=r"has changed while it was read|416"):
            source.read(5)
        server.shutdown()


def test_errors_say_what_to_do(tmp_path, monkeypatch):
    pytest.importorskip("aiohttp")
    write_tar(tmp_path / "a.tar", good_members(2))
    write_tar(tmp_path / "forbidden.tar", good_members(2))
    (tmp_path / "empty").mkdir()
    with StandIn(tmp_path) as server:
        with pytest.raises(UserError, match=r"b\.tar is not there"):
            open_pairs(f"{server.url}/b.tar", split="all")
        with pytest.raises(UserError, match=r"may not be read .*give credentials"):
            open_pairs(f"{server.url}/forbidden.tar", split="all")
        with pytest.raises(UserError, match=r"no \.tar shards in"):
            open_pairs(f"{server.url}/empty", split="val")
        server.failing, server.draws.choice = 1.0, lambda faults: "503"
        with pytest.raises(UserError, match=r"8 requests failed, the last with .* goes on later"):
            RemoteShard(f"{server.url}/a.tar").look()
        assert server.faults >= remote.TRIES
        server.shutdown()
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(MissingPackage, match=r"gs:// shards need another package .*: pip install gcsfs"):
        open_pairs("gs://bucket/a.tar", split="all")
    with pytest.raises(UserError, match=r"nowhere://.* cannot be opened: "):
        open_pairs("nowhere://bucket/a.tar", split="all")


def test_other_stores_of_fsspec(tmp_path):
    files = fsspec.filesystem("memory")
    for number in range(2):
        path = write_tar(tmp_path / f"{number}.tar", good_members(5, first=5 * number))
        files.pipe(f"/shards/{number}.tar", path.read_bytes())
    source = open_pairs("memory://shards", split="all")
    assert everything(source) == everything(open_pairs(tmp_path, split="all"))
    files.pipe("/shards/1.tar", b"")
    with pytest.raises(UserError, match="has changed"):
        source.image(7)


def test_a_short_shard_is_damage_and_the_network_is_none(tmp_path):
    data = write_tar(tmp_path / "a.tar", good_members(4)).read_bytes()
    fsspec.filesystem("memory").pipe("/cut/a.tar", data[: len(data) // 2])
    source = open_pairs("memory://cut/a.tar", split="all")
    with pytest.raises(Damage, match=r"truncated|missing-image|no-caption"):
        for index in range(len(source)):
            source.read(index)


def test_what_counts_as_a_url_and_what_is_shown_of_it():
    assert is_url("s3://b/k.tar") and not is_url("C:/shards/a.tar") and not is_url("pipe:curl https://x")
    assert shown_url("https://me:secret@host/a.tar?signature=abc") == "https://host/a.tar"
    assert (RemoteShard("s3://b/c/7.tar?x").stem, RemoteShard("s3://b/c/7.tar").parent) == ("7", "s3://b/c")
    refuse_missing("s3://bucket/anything")


@pytest.mark.parametrize(
    ("like", "name", "url"),
    [
        ("s3://bucket/set/*.tar", "bucket/set/0.tar", "s3://bucket/set/0.tar"),
        ("sftp://me@host/data/*.tar", "/data/0.tar", "sftp://me@host/data/0.tar"),
        ("abfs://box@account.net/set/*.tar", "box/set/0.tar", "abfs://box@account.net/set/0.tar"),
        ("https://host/set", "https://host/set/0.tar", "https://host/set/0.tar"),
    ],
)
def test_names_of_a_store_become_urls_in_it(like, name, url):
    assert remote._as_url(like, name) == url


def test_files_by_url(tmp_path):
    write_set(tmp_path, part="train", count=6, shards=2)
    local = open_pairs(tmp_path / "train", split="all")
    for where in ("train", "train/*.tar"):
        assert everything(open_pairs(f"file://{tmp_path}/{where}", split="all")) == everything(local)


def test_errors_show_no_secrets(tmp_path, caplog):
    pytest.importorskip("aiohttp")
    write_tar(tmp_path / "a.tar", good_members(2))
    with StandIn(tmp_path, failing=1.0) as server, caplog.at_level("INFO"):
        server.draws.choice = lambda faults: "503"
        with pytest.raises(UserError, match="8 requests failed") as refused:
            RemoteShard(f"{server.url}/a.tar?signature=SECRET").look()
        server.shutdown()
    assert "trying again" in caplog.text and "SECRET" not in caplog.text + str(refused.value)


def test_many_items_do_not_wait_at_once():
    begun = []
    found = remote.side_by_side(lambda item: begun.append(item) or item, range(1000))
    assert next(found) == 0 and len(begun) < 100 and list(found) == list(range(1, 1000))


def test_an_error_does_not_wait_for_requests_that_have_not_begun():
    begun = []

    def failing(item):
        begun.append(item)
        time.sleep(0.05)
        raise OSError(f"item {item}")

    with pytest.raises(OSError, match="item 0"):
        list(remote.side_by_side(failing, range(10 * remote.AT_ONCE)))
    assert len(begun) < 2 * remote.AT_ONCE


def test_a_stored_run_never_leads_to_the_network(tmp_path, monkeypatch):
    monkeypatch.delenv("DINORANKCLIP_ONLINE", raising=False)
    with pytest.raises(UserError, match="names data on another machine"):
        refuse_command("s3://bucket/a.tar", tmp_path)
    monkeypatch.setenv("DINORANKCLIP_ONLINE", "1")
    refuse_command("s3://bucket/a.tar", tmp_path)


def test_s3_by_s3fs(store, tmp_path, monkeypatch):
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": store.url, "client_kwargs": {"region_name": "x"}})
    with pytest.raises(UserError, match="is not there"):
        open_pairs("s3://bucket/nothing.tar", split="all")
    local = everything(open_pairs(tmp_path / "bucket/set/train", split="all"))
    for where in ("s3://bucket/set", "s3://bucket/set/train/*.tar", "s3://bucket/set/train/{0..2}.tar"):
        split = "train" if where.endswith("set") else "all"
        found = open_pairs(where, ReadingSettings(), split)
        assert split == "train" or everything(found) == local, where
    assert np.all(open_pairs("s3://bucket/set/test", split="all").sizes() > 0)


def test_every_command_that_takes_shards_takes_urls(store, tmp_path, capsys, monkeypatch):
    from dinorankclip.commands.entry import main
    from tests.models.model_making import saved, small_model

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DINORANKCLIP_HOME", str(tmp_path / "built"))
    model, url = str(saved(tmp_path / "model", small_model(seed=1))), f"{store.url}/bucket/set"
    main(["data", "show", url, "--out", "sheet.png"])
    with pytest.raises(SystemExit):
        main(["data", "check", f"{url}/nothing"])
    main(["data", "check", url, "--samples", "5"])
    assert "train: 22 images" in capsys.readouterr().out
    for name, where in (("local", tmp_path / "bucket/set"), ("remote", url)):
        main(["embed", model, "--data", str(where), "--split", "test", "--out", name])
        main(["score", model, "--sets", str(where), "--out", f"scores-{name}", "--draws", "100"])
    assert (tmp_path / "remote/images.npy").read_bytes() == (tmp_path / "local/images.npy").read_bytes()
    scores = [json.loads((tmp_path / f"scores-{name}/scores.json").read_text()) for name in ("local", "remote")]
    assert str(scores[0]["sets"]).replace(str(tmp_path / "bucket/set"), url) == str(scores[1]["sets"])
