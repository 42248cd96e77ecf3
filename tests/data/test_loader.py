"""The exact position: a batch is a function of (seed, step), whoever builds it."""

import itertools
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from pair_making import DAMAGED, ListSource, damaged_members, good_members, raw, write_tar

from dinorankclip.config import ReadingSettings
from dinorankclip.data.damage import Damage
from dinorankclip.data.loader import PairLoader, advice
from dinorankclip.data.splits import SplitPart
from dinorankclip.data.tar_shards import ShardSource
from dinorankclip.losses.groups import other_positives
from dinorankclip.types import ImageSpec, UserError
from tests.systems import LINUX

READING = ReadingSettings(workers=0, crop_scale=(0.5, 1.0), flip=True, max_damaged=0.9)
WITH_TWO = ReadingSettings(workers=2, crop_scale=(0.5, 1.0), flip=True, max_damaged=0.9)


@pytest.fixture(scope="module")
def source():
    entries = [raw(n, [f"{n} a", f"{n} b longer", f"{n} c"]) for n in range(30)]
    return ListSource([*entries, "truncated", "corrupt", "no-caption", "not-utf8"])  # 34: a remainder of 4


class Captioned(ListSource):
    """Images are never read: a row, the embedding of a frozen image side, must be enough."""

    def captions(self, index):
        return super().read(index).captions

    def read(self, index):
        raise AssertionError("an image was read")

    def rows(self, index):
        if self.entries[index] in ("truncated", "corrupt"):
            raise Damage(self.entries[index])
        return torch.arange(4, dtype=torch.float32) + index


def batches(source, tokenizer, count, reading=READING, batch=10, **settings):
    loader = PairLoader(source, ImageSpec(24), tokenizer, batch=batch, seed=5, reading=reading, **settings)
    return list(itertools.islice(loader, count))


def same(one, other):
    return (
        torch.equal(one.images, other.images)
        and torch.equal(one.texts, other.texts)
        and torch.equal(one.groups, other.groups)
        and (one.keys, one.views, one.captions, one.damage) == (other.keys, other.views, other.captions, other.damage)
    )


def shared(batch):
    """Pairs (i, j), i < j, of samples that share an id."""
    found = other_positives(batch.groups, torch.arange(len(batch.keys))).nonzero().tolist()
    return {(i, j) for i, j in found if i < j}


class Products(ListSource):
    """Pairs with products: the first two are mugs, the last two have none."""

    def group(self, index):
        return ["mug", "mug", "lamp", "", ""][index]


def test_pairs_share_captions_and_groups(tokenizer):
    source = Products([raw(n, [text]) for n, text in enumerate(["a", "b", "A  Chair", "a chair ", "c"])])
    for column, together in ((None, {("2", "3")}), ("product", {("2", "3"), ("0", "1")})):
        reading = ReadingSettings(workers=0, group_column=column)
        (batch,) = batches(source, tokenizer, 1, reading, batch=5)
        assert batch.groups.shape == (5, 4) and batch.groups.dtype == torch.int64
        numbers = [source.key(index) for index in range(5)]
        names = {tuple(sorted(str(numbers.index(batch.keys[i])) for i in pair)) for pair in shared(batch)}
        assert names == together
        part = SplitPart(source, np.arange(5))  # a part of a table has the groups of its table
        assert torch.equal(batches(part, tokenizer, 1, reading, batch=5)[0].groups, batch.groups)


def test_a_second_caption_is_shared_as_the_first_one_is(tokenizer):
    source = ListSource([raw(0, ["a", "b"]), raw(1, ["b", "a"]), raw(2, ["c", "d"])])
    for batch in batches(source, tokenizer, 6, ReadingSettings(workers=0), batch=3, second_caption=True):
        pair = sorted(batch.keys.index(source.key(index)) for index in (0, 1))
        assert shared(batch) == {tuple(pair)}


def test_an_image_that_replaces_a_damaged_one_is_no_negative_of_itself(tokenizer):
    source = ListSource([raw(0, ["a", "b", "c"]), "corrupt"])
    (batch,) = batches(source, tokenizer, 1, batch=2)
    assert batch.keys == [source.key(0)] * 2 and shared(batch) == {(0, 1)}


def test_shapes_and_types(source, tokenizer):
    loader = PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=0, reading=READING)
    assert loader.steps_per_epoch == 3
    batch = next(iter(loader))
    assert batch.images.shape == (10, 3, 24, 24) and batch.images.dtype == torch.uint8
    assert batch.texts.dtype == torch.int64 and torch.equal(batch.texts, tokenizer(batch.captions))
    assert len(batch.keys) == len(batch.views) == 10 and batch.second_texts is None
    assert loader.step == 1


def test_same_seed_same_batches_other_seed_or_epoch_others(source, tokenizer):
    first, second = batches(source, tokenizer, 6), batches(source, tokenizer, 6)
    assert all(map(same, first, second))
    assert first[0].keys != first[3].keys
    other = PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=6, reading=READING)
    assert next(iter(other)).keys != first[0].keys


def test_an_epoch_visits_each_pair_at_most_once(tokenizer):
    good = ListSource([raw(n) for n in range(34)])
    keys = [key for batch in batches(good, tokenizer, 3) for key in batch.keys]
    assert len(set(keys)) == 30


def test_starting_at_step_k_equals_skipping_k(source, tokenizer):
    whole = batches(source, tokenizer, 8)
    for start in (1, 3, 5):
        assert all(map(same, whole[start:], batches(source, tokenizer, 8 - start, start=start)))


@pytest.mark.parametrize("world", [2, 5])
def test_many_processes_see_the_batch_of_one(source, tokenizer, world):
    whole = batches(source, tokenizer, 4)
    shares = [batches(source, tokenizer, 4, rank=rank, world=world) for rank in range(world)]
    for step, one in enumerate(whole):
        parts = [share[step] for share in shares]
        assert torch.equal(one.images, torch.cat([part.images for part in parts]))
        assert one.captions == [caption for part in parts for caption in part.captions]
        assert one.views == [view for part in parts for view in part.views]
        assert one.damage == [found for part in parts for found in part.damage]
    with pytest.raises(UserError, match="divided equally"):
        PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=0, world=3)


def test_workers_change_nothing(source, tokenizer):
    assert all(map(same, batches(source, tokenizer, 7), batches(source, tokenizer, 7, WITH_TWO)))


def test_torchs_global_stream_is_left_alone(source, tokenizer):
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    batches(source, tokenizer, 2, WITH_TWO)
    batches(source, tokenizer, 2)
    assert torch.equal(torch.get_rng_state(), expected)


def test_captions_take_turns_and_second_captions_differ(source, tokenizer):
    seen = {caption for batch in batches(source, tokenizer, 30) for caption in batch.captions}
    assert len(seen) > 80
    for batch in batches(source, tokenizer, 3, second_caption=True):
        second = batch.second_texts
        assert second.shape[0] == 10
        own = tokenizer(batch.captions, full=True)
        padded = torch.nn.functional.pad(second, (0, 77 - second.shape[1]))
        assert (own != padded).any(dim=1).all()
        assert (own[:, 1] == padded[:, 1]).all()  # both captions begin with the image's number
    alone = ListSource([raw(n, ["same", "same"]) for n in range(20)])
    for reading in (READING, WITH_TWO):
        with pytest.raises(UserError, match=r"^image k\d+ has only one caption, and ALIP"):
            batches(alone, tokenizer, 1, reading, second_caption=True)


def test_companions_get_keys_and_views(source, tokenizer):
    def teacher_features(keys, views, captions):
        return {"sizes": torch.tensor([[view.height, view.width] for view in views])}

    for batch in batches(source, tokenizer, 2, WITH_TWO, teacher_features=teacher_features):
        assert batch.teacher_features["sizes"][3].tolist() == pytest.approx(
            [batch.views[3].height, batch.views[3].width]
        )


def test_two_hundred_damaged_samples_of_ten_kinds(tmp_path, tokenizer):
    bad, good = list(damaged_members(20)), list(good_members(1000))
    paths = [write_tar(tmp_path / f"{n}.tar", good[n * 500 : n * 500 + 500]) for n in range(4)]
    paths.append(write_tar(tmp_path / "4.tar", bad))
    source = ShardSource(paths)
    assert len(source) == 1200
    loader = PairLoader(source, ImageSpec(16), tokenizer, batch=100, seed=1, reading=WITH_TWO)
    for batch in itertools.islice(loader, loader.steps_per_epoch):
        assert batch.images.shape[0] == 100 and all(key.startswith("k") for key in batch.keys)
    assert loader.damage.by_cause == {cause: 20 for cause in sorted(DAMAGED)}
    assert 200 <= loader.damage.replaced < 300 and loader.damage.seen == 1200 + loader.damage.replaced
    assert "20 truncated" in loader.damage.summary()


def test_too_many_damaged_samples_stop_the_run(tokenizer, caplog):
    source = ListSource([raw(n) if n % 3 else "truncated" for n in range(300)])
    strict = ReadingSettings(workers=0, max_damaged=0.05)
    with pytest.raises(UserError, match=r"more than reading.max_damaged = 5.0%"):
        batches(source, tokenizer, 30, strict, batch=50)
    assert "entry " in caplog.text and "truncated" in caplog.text
    assert len(batches(source, tokenizer, 2, strict, batch=50)) == 2  # below 200 seen: no verdict yet


def test_nothing_usable_at_all_ends_soon(tokenizer):
    for reading in (READING, WITH_TWO):
        with pytest.raises(UserError, match=r"(?s)^64 pairs in a row.*corrupt"):
            batches(ListSource(["corrupt"] * 50), tokenizer, 1, reading)


def test_too_few_pairs_for_a_batch(tokenizer):
    with pytest.raises(UserError, match=r"12 pairs do not fill one batch of 20.*smaller --budget.batch"):
        batches(ListSource([raw(n) for n in range(12)]), tokenizer, 1, batch=20)


def children(of=None):
    mine = str(of or os.getpid())
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    if file.read().rpartition(")")[2].split()[1] == mine:
                        found.append(int(entry))
            except OSError:
                continue
    return set(found)


@LINUX
def test_no_worker_is_left_behind(source, tokenizer):
    before = children()
    stream = iter(PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=0, reading=WITH_TWO))
    next(stream)
    workers = children() - before
    assert len(workers) == 2
    for worker in workers:  # Ctrl-C and a scheduler's SIGTERM reach the whole group; workers leave them to us
        os.kill(worker, signal.SIGINT)
        os.kill(worker, signal.SIGTERM)
    for _ in range(12):
        next(stream)
    stream.close()
    assert not children() - before


@LINUX
def test_a_killed_worker_is_an_error_not_a_hang(source, tokenizer):
    before = children()
    stream = iter(PairLoader(source, ImageSpec(24), tokenizer, batch=10, seed=0, reading=WITH_TWO))
    next(stream)
    started = time.monotonic()
    # torch notices by a signal, anywhere in the main process: inside the loader it is a UserError.
    with pytest.raises((UserError, RuntimeError), match=r"reading process died|DataLoader worker"):
        os.kill(min(children() - before), signal.SIGKILL)
        for _ in range(30):
            next(stream)
            time.sleep(0.02)
    assert time.monotonic() - started < 20
    stream.close()
    assert not children() - before


@pytest.mark.parametrize("wrong", [RuntimeError("size 0 is no size"), KeyError("size 0 is no size")])
def test_an_error_in_a_worker_is_told_as_what_it_is(tokenizer, wrong):
    def fails():
        raise wrong

    with pytest.raises(UserError, match=r"reading failed: (Runtime|Key)Error: .*size 0 is no size") as reported:
        batches(ListSource([fails] * 20), tokenizer, 1, WITH_TWO)
    assert "memory" not in str(reported.value) and "\n" not in str(reported.value)


ORPHANS = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from pair_making import ListSource, raw
from dinorankclip.config import ReadingSettings
from dinorankclip.data.loader import PairLoader
from dinorankclip.types import ImageSpec

class Words:  # no need to load the real vocabulary
    def load(self): return self
    def __call__(self, captions): return torch.zeros(len(captions), 2, dtype=torch.int64)

source = ListSource([raw(n) for n in range(20)])
for batch in PairLoader(source, ImageSpec(24), Words(), batch=10, seed=0, reading=ReadingSettings(workers=2)):
    print(len(batch.keys), flush=True)
"""


@LINUX
def test_workers_of_a_killed_run_end(tmp_path):
    command = [sys.executable, "-c", ORPHANS, os.path.dirname(__file__)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path) as run:
        assert run.stdout.readline() == b"10\n"
        workers = children(run.pid)
        run.kill()
        run.wait()
    assert len(workers) == 2
    deadline = time.monotonic() + 15
    while any(os.path.exists(f"/proc/{worker}") for worker in workers):
        assert time.monotonic() < deadline, "a worker outlived its killed run"
        time.sleep(0.1)


@LINUX
def test_a_stuck_worker_is_an_error_not_a_hang(tokenizer, monkeypatch):
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.5)  # torch's patience at the end: 5 s

    def stuck():
        while True:
            time.sleep(60)

    before = children()
    reading = ReadingSettings(workers=1, patience=1.0)
    with pytest.raises(UserError, match=r"no batch came for 1 s: reading hangs"):
        batches(ListSource([stuck] * 20), tokenizer, 1, reading)
    assert not children() - before


def test_a_dead_worker_that_leaves_no_word_is_told_by_the_kind_of_error():
    assert advice(EOFError(), ReadingSettings()).startswith("a reading process died (EOFError). Most often")


def test_only_the_images_of_batches_of_rows_differ_from_batches_of_pixels(source, tokenizer):
    captioned = Captioned(source.entries)
    settings = {"batch": 10, "seed": 5, "reading": READING, "second_caption": True}
    by_pixels = PairLoader(source, ImageSpec(24), tokenizer, **settings)
    by_rows = PairLoader(captioned, ImageSpec(24), tokenizer, **settings, rows=captioned.rows)
    for seen, known in itertools.islice(zip(by_pixels, by_rows), 9):
        assert known.images.shape == (10, 4) and known.images.dtype == torch.float32
        assert (seen.keys, seen.captions, seen.damage) == (known.keys, known.captions, known.damage)
        assert torch.equal(seen.texts, known.texts) and torch.equal(seen.second_texts, known.second_texts)
        assert torch.equal(known.images, torch.stack([captioned.rows(int(key[1:])) for key in known.keys]))
    assert by_rows.damage.keys == by_pixels.damage.keys
    assert set(by_rows.damage.by_cause) == {"truncated", "corrupt", "no-caption", "not-utf8"}


def test_workers_positions_and_processes_of_batches_of_rows(source, tokenizer):
    captioned = Captioned(source.entries)
    rows = {"rows": captioned.rows}
    whole = batches(captioned, tokenizer, 6, **rows)
    assert all(map(same, whole[2:], batches(captioned, tokenizer, 4, start=2, **rows)))
    assert all(map(same, whole, batches(captioned, tokenizer, 6, WITH_TWO, **rows)))
    shares = [batches(captioned, tokenizer, 6, rank=rank, world=2, **rows) for rank in range(2)]
    for step, one in enumerate(whole):
        assert torch.equal(one.images, torch.cat([share[step].images for share in shares]))
