"""Streams: all samples come, processes get different shards and equally many batches, resumption is by shard."""

import itertools
import logging
import tarfile

import pytest
from pair_making import damaged_members, good_members, write_tar

from dinorankclip.config import ReadingSettings
from dinorankclip.data.benchmark_sets import SetLocation, open_set
from dinorankclip.data.loader import PairLoader
from dinorankclip.data.open_data import open_pairs
from dinorankclip.data.streams import PipeSource, held_out, is_stream, read_into_memory, stream_shard
from dinorankclip.types import ImageSpec, RawSample, UserError

READING = ReadingSettings(workers=0, epoch_samples=40, max_damaged=0.9)


@pytest.fixture
def where(tmp_path):
    for shard in range(5):
        write_tar(tmp_path / f"{shard}.tar", good_members(10, first=10 * shard))
    return f"pipe:cat {tmp_path}/{{0..4}}.tar"


def batches(source, tokenizer, count, reading=READING, **settings):
    loader = PairLoader(source, ImageSpec(16), tokenizer, batch=8, seed=2, reading=reading, **settings)
    return list(itertools.islice(loader, count))


def test_parts_share_no_sample(where, tokenizer):
    train, val = open_pairs(where, READING, "train"), open_pairs(where, READING, "val")
    assert len(train) == 40 and len(val) == 10 and is_stream(train)
    seen = [key for batch in batches(train, tokenizer, 20) for key in batch.keys]
    assert len(set(seen)) == 40
    assert not set(seen) & {val.key(i) for i in range(10)}
    assert len(set(seen[:40])) > 15  # mixed, but no sample is starved


def test_the_same_step_gives_the_same_batch(where, tokenizer):
    source = open_pairs(where, READING, "all")
    for reading in (READING, ReadingSettings(workers=2, epoch_samples=40)):
        first, second = batches(source, tokenizer, 9, reading), batches(source, tokenizer, 9, reading)
        assert [batch.keys for batch in first] == [batch.keys for batch in second]
        assert all((one.images == other.images).all() for one, other in zip(first, second))


def test_processes_take_turns_at_shards(where, tokenizer):
    source = PipeSource(open_pairs(where, READING, "all").shards[:4], 40)
    loaders = [
        PairLoader(source, ImageSpec(16), tokenizer, batch=8, seed=2, reading=READING, rank=rank, world=2)
        for rank in (0, 1)
    ]
    assert [loader.steps_per_epoch for loader in loaders] == [5, 5]
    shares = [list(itertools.islice(loader, 4)) for loader in loaders]
    assert all(len(batch.keys) == 4 for share in shares for batch in share)
    one, two = ({key for batch in share for key in batch.keys} for share in shares)
    assert len(one | two) > len(one)


def test_resumption_starts_at_a_shard_and_says_so(where, tokenizer, caplog):
    source = open_pairs(where, READING, "all")
    with caplog.at_level(logging.WARNING):
        batches(source, tokenizer, 1, start=7)
    assert "beginning of a shard, number 7" in caplog.text  # 7 steps of 8 samples at 8 samples a shard


def test_a_run_that_resumes_sets_the_step_and_goes_on_from_there(where, tokenizer):
    source = open_pairs(where, READING, "all")
    asked = batches(source, tokenizer, 3, start=7)
    loader = PairLoader(source, ImageSpec(16), tokenizer, batch=8, seed=2, reading=READING)
    loader.step = 7  # as `assemble.resume` does
    resumed = list(itertools.islice(loader, 3))
    assert [batch.keys for batch in resumed] == [batch.keys for batch in asked]
    assert [batch.keys for batch in resumed] != [batch.keys for batch in batches(source, tokenizer, 3)]
    assert loader.step == 10


def test_shards_that_keep_failing_end_the_run(tmp_path, tokenizer):
    good = [f"pipe:cat {write_tar(tmp_path / f'{n}.tar', good_members(8, first=8 * n))}" for n in range(2)]
    gone = [f"pipe:cat {tmp_path}/gone-{n}.tar" for n in range(6)]
    reading = ReadingSettings(workers=0, epoch_samples=1000)
    with pytest.raises(UserError, match=r"1\d of 20 pipe: shards could not .* one by hand: pipe:cat .*gone"):
        batches(PipeSource(good + gone, 1000), tokenizer, 100, reading)
    # Some may fail: networks do.
    patient = ReadingSettings(workers=0, epoch_samples=8, max_damaged=0.2)
    assert len(batches(PipeSource(good + gone[:1], 8), tokenizer, 40, patient)) == 40


def test_held_out_samples_have_keys_of_their_own(tmp_path):
    shards = [f"pipe:cat {write_tar(tmp_path / f'{n}.tar', good_members(3))}" for n in range(2)]
    found = read_into_memory(shards, most=99)
    assert len({found.key(n) for n in range(6)}) == 6


def test_damage_in_a_stream_is_counted(tmp_path, tokenizer):
    path = write_tar(tmp_path / "a.tar", [*good_members(20), *damaged_members(1)])
    loader = PairLoader(
        PipeSource([f"pipe:cat {path}"], 30), ImageSpec(16), tokenizer, batch=8, seed=0, reading=READING
    )
    list(itertools.islice(loader, 12))
    assert len(loader.damage.by_cause) == 10


def test_a_stream_that_ends_early_yields_what_came(tmp_path):
    path = write_tar(tmp_path / "a.tar", good_members(10, captions=1))
    with tarfile.open(path) as tar:
        inside = tar.getmembers()[10].offset_data + 50
    found = list(stream_shard(f"pipe:head -c {inside} {path}"))
    assert sum(isinstance(sample, RawSample) for sample in found) == 5
    assert found[-1][1].cause == "truncated"


def test_a_stream_can_be_left_early(tmp_path):
    big = write_tar(tmp_path / "0.tar", ((f"{n}.{kind}", data) for n in range(3000) for kind, data in
                                         (("jpg", b"x" * 2000), ("txt", b"words"))))  # fmt: skip
    where = f"pipe:cat {big}::pipe:cat {big}"
    assert len(open_pairs(where, ReadingSettings(val_most=3), "val")) == 3


def test_a_command_that_fails_when_its_reader_leaves_is_not_to_blame(tmp_path):
    shard = write_tar(tmp_path / "0.tar", [("a.jpg", b"x"), ("a.txt", b"words"), ("b.jpg", bytes(300_000))])
    stream = stream_shard(f"pipe:cat {shard}; exit 3")
    assert next(stream).key == "a"
    stream.close()  # would raise: generator ignored GeneratorExit
    *_, last = stream_shard(f"pipe:cat {shard}; exit 3")
    assert last[1].cause == "truncated"  # whoever reads to the end is reported


def test_commands_that_give_nothing_end_the_run(tokenizer):
    for reading in (READING, ReadingSettings(workers=1, epoch_samples=40)):
        with pytest.raises(UserError, match="no usable sample came out of 21 shards in a row"):
            batches(PipeSource(["pipe:cat /nowhere/1.tar", "pipe:true"], 40), tokenizer, 1, reading)


def test_settings_that_a_stream_needs(where):
    with pytest.raises(UserError, match=r"--reading.epoch-samples"):
        open_pairs(where, ReadingSettings(), "train")
    with pytest.raises(UserError, match="at least two shards"):
        open_pairs("pipe:cat x.tar", READING, "train")
    with pytest.raises(UserError, match="cannot be mixed"):
        open_pairs("pipe:cat x.tar::y.tar", READING, "all")


def test_what_is_held_out_can_be_scored_and_the_stream_itself_cannot(where):
    found = open_set(SetLocation("stream", where, READING))
    held_out = found.open(found.scored_split())
    assert len(held_out) == len(held_out.sizes()) > 0
    with pytest.raises(UserError, match="the all part are read in any order, and pipe: shards are a stream"):
        found.open("all")


def test_no_more_is_held_out_than_validation_reads():
    shards = [f"pipe:cat {number}.tar" for number in range(332)]
    val, train = held_out(shards, ReadingSettings(epoch_samples=2_900_000))
    assert (len(val), len(train)) == (1, 331) and val + train == shards
    val, _ = held_out(shards, ReadingSettings(epoch_samples=2_900_000, val_most=20_000))
    assert len(val) == 3  # 20,000 samples of 8,735 a shard
    val, _ = held_out(shards, ReadingSettings(epoch_samples=3_320))
    assert len(val) == 33  # ten samples a shard: a tenth of the shards are fewer than may be read
