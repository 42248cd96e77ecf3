"""A cache gives what the teacher would say of the view, survives kills, and refuses what it does not fit."""

import json
import os
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

from dinorankclip.config import ReadingSettings
from dinorankclip.data.tokens import Tokenizer
from dinorankclip.losses.distillation import cosine_gram, gram_distance, normalise_gram
from dinorankclip.teachers import cache_read, cache_request
from dinorankclip.teachers.cache_build import make_cache
from dinorankclip.teachers.cache_format import CacheLayout
from dinorankclip.teachers.cache_read import TeacherCache
from dinorankclip.teachers.cache_request import CacheSpec
from dinorankclip.teachers.text_teachers import pool_words
from dinorankclip.types import TextSpec, UserError, View
from tests.systems import POSIX
from tests.teachers.cache_making import Pictures, bytes_of, letter_teacher, local_teacher

# Along patch borders of an 8×8 grid: four by four patches.
BOXES = [
    View(0.0, 0.0, 0.5, 0.5),
    View(0.25, 0.125, 0.5, 0.5, True),
    View(0.5, 0.5, 0.5, 0.5, True),
    View(0.125, 0.375, 0.5, 0.5),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pictures():
    return Pictures(4)


def made(folder, pictures, coding="fp32", keep="both", **settings):
    make_cache(folder, {"train": pictures}, local_teacher(), layout=CacheLayout(keep, coding), show=False, **settings)
    return folder


def opened(folder, part="train", **settings):
    return TeacherCache(folder, part, **settings)


def cut_out(pictures, views):
    """Return the pixels of the views, flipped where they are, as a teacher would receive them."""
    shown = []
    for pixels, view in zip(pictures.pixels, views):
        top, left = round(view.top * 64), round(view.left * 64)
        box = torch.from_numpy(pixels[top : top + 32, left : left + 32].copy()).permute(2, 0, 1)
        shown.append(box.flip(-1) if view.flip else box)
    return torch.stack(shown)


def keys(pictures):
    return [pictures.key(i) for i in range(len(pictures))]


def test_a_cropped_cache_is_the_teacher_on_the_crop(pictures, tmp_path):
    fresh = local_teacher(32).dense(cut_out(pictures, BOXES))
    cache = opened(made(tmp_path / "exact", pictures), compare_grid=4)
    cached = cache(keys(pictures), BOXES, [])
    gram = fresh.tokens @ fresh.tokens.mT
    torch.testing.assert_close(cached["image_gram"], gram, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(normalise_gram(cached["image_gram"]), cosine_gram(fresh.tokens), atol=1e-5, rtol=0)
    basis = cache._basis
    assert basis.shape == (16, 16)
    torch.testing.assert_close(cached["image_tokens"] @ basis, fresh.tokens, atol=1e-5, rtol=0)
    # a quarter of the image: the mean of its tokens; the whole: the class token
    torch.testing.assert_close(cached["image_summary"], fresh.tokens.mean(1), atol=1e-5, rtol=0)
    whole = cache(keys(pictures), [View()] * 4, [])["image_summary"]
    pixels = torch.from_numpy(pictures.pixels).permute(0, 3, 1, 2)
    torch.testing.assert_close(whole, local_teacher().dense(pixels).summary, atol=1e-5, rtol=0)


def test_any_box_is_torchs_grid_sample_of_the_map(pictures, tmp_path):
    cache = opened(made(tmp_path / "c", pictures), compare_grid=4)
    view = View(0.11, 0.3, 0.45, 0.4, True)
    pixels = torch.from_numpy(pictures.pixels).permute(0, 3, 1, 2)
    features = local_teacher().dense(pixels).tokens.transpose(1, 2).unflatten(2, (8, 8))
    y = (view.top + (torch.arange(4) + 0.5) / 4 * view.height) * 2 - 1
    x = (view.left + (torch.arange(4) + 0.5) / 4 * view.width) * 2 - 1
    where = torch.stack(torch.meshgrid(x.flip(0), y, indexing="xy"), -1)[None].expand(4, -1, -1, -1)
    sampled = F.grid_sample(features, where, padding_mode="border", align_corners=False).flatten(2).transpose(1, 2)
    cached = cache(keys(pictures), [view] * 4, [])
    torch.testing.assert_close(normalise_gram(cached["image_gram"]), cosine_gram(sampled), atol=1e-5, rtol=0)
    torch.testing.assert_close(cached["image_tokens"] @ cache._basis, sampled, atol=1e-5, rtol=0)


def test_eight_bits_cost_less_than_a_hundredth(pictures, tmp_path):
    exact = opened(made(tmp_path / "exact", pictures), compare_grid=4)(keys(pictures), BOXES, [])
    for coding, most in (("8bit", 0.01), ("fp16", 0.001)):
        coded = opened(made(tmp_path / coding, pictures, coding), compare_grid=4)(keys(pictures), BOXES, [])
        pair = (normalise_gram(coded["image_gram"]), normalise_gram(exact["image_gram"]))
        assert 0 < gram_distance(*pair).max() < most
        for name in ("image_tokens", "image_summary"):
            error = (coded[name] - exact[name]).norm() / exact[name].norm()
            assert 0 < error < most, (coding, name)


def test_without_tokens_the_class_token_stands_for_every_view(pictures, tmp_path):
    cache = opened(made(tmp_path / "gram", pictures, keep="gram"))
    assert not cache.summary_follows and cache.compare_grid == (4, 4)
    cached = cache(keys(pictures), BOXES, [])
    assert set(cached) == {"image_gram", "image_summary"}
    assert torch.equal(cached["image_summary"], cache(keys(pictures), [View()] * 4, [])["image_summary"])


def test_captions_by_words(pictures, tmp_path):
    teacher = letter_teacher()
    make_cache(tmp_path / "c", {"train": pictures}, local_teacher(), teacher, CacheLayout("both", "fp32"), show=False)
    captions = ["a picture", pictures.texts[0], pictures.texts[3], pictures.texts[0]]
    tokenizer = Tokenizer()
    cached = pickle.loads(pickle.dumps(opened(tmp_path / "c", tokenizer=tokenizer))).texts(captions)
    features = teacher.tokens(captions)
    words, exists = pool_words(features.tokens, features.word_ids)
    assert torch.equal(cached["text_mask"], exists)
    torch.testing.assert_close(cached["text_gram"], words @ words.mT, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(cached["text_summary"], features.summary, atol=1e-6, rtol=0)
    gram_of_tokens = cached["text_tokens"] @ cached["text_tokens"].mT
    torch.testing.assert_close(gram_of_tokens, words @ words.mT, atol=1e-4, rtol=1e-4)
    assert cached["text_word_ids"].shape == tokenizer(captions).shape


def die(rank, folder):
    torch.set_num_threads(1)
    teacher = local_teacher(dies_after=3)  # one call for the plan and one for each of two shards
    make_cache(folder, {"train": Pictures(40, damaged=(5,))}, teacher, layout=CacheLayout(rows=16), show=False)


def share(rank, folder, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    make_cache(folder, {"train": Pictures(40, damaged=(5,))}, local_teacher(), layout=CacheLayout(rows=16), show=False)
    dist.destroy_process_group()


@POSIX
def test_killed_and_shared_out_it_ends_byte_identical(tmp_path):
    damaged = Pictures(40, damaged=(5,))
    make_cache(tmp_path / "whole", {"train": damaged}, local_teacher(), layout=CacheLayout(rows=16), show=False)
    killed = tmp_path / "killed"
    with pytest.raises(mp.ProcessExitedException, match="SIGKILL"):
        mp.spawn(die, (killed,))
    assert (killed / "train-00000.bin").exists() and not (killed / "train-00002.bin").exists()
    with pytest.raises(UserError, match="not complete"):
        opened(killed)
    (killed / ".train-00001.bin.7").write_bytes(b"half")
    os.utime(killed / ".train-00001.bin.7", (0, 0))
    mp.spawn(share, (killed, str(tmp_path / "meet")), nprocs=2)
    assert bytes_of(killed) == bytes_of(tmp_path / "whole")
    assert json.loads((killed / "manifest.json").read_text())["damaged"] == 1
    with pytest.raises(UserError, match=r"picture 5 could not be read .* delete that folder"):
        opened(killed)(["picture 5"], [View()], [])


def test_what_others_are_writing_and_hidden_folders_are_left_alone(pictures, tmp_path):
    (tmp_path / "c" / ".hidden").mkdir(parents=True)
    (tmp_path / "c" / ".DS_Store").write_bytes(b"")
    (tmp_path / "c" / ".train-00000.bin.7").write_bytes(b"half")
    files = json.loads((made(tmp_path / "c", pictures) / "manifest.json").read_text())["files"]
    assert set(files) == {"basis.safetensors", "train-00000.bin", "train.keys.npy"}
    assert (tmp_path / "c" / ".train-00000.bin.7").read_bytes() == b"half"
    opened(tmp_path / "c")


def test_an_image_that_cannot_be_read_now_is_not_kept_as_damaged(tmp_path):
    pictures = Pictures(4, damaged=(2,), cause="unreadable")
    with pytest.raises(UserError, match="1 of the files cannot be read now, the first is picture 2"):
        made(tmp_path / "c", pictures, keep="gram")
    pictures.damaged = ()
    made(tmp_path / "c", pictures, keep="gram")
    opened(tmp_path / "c")(["picture 2"], [View()], [])


def test_other_bounds_on_pixels_are_another_cache(pictures, tmp_path):
    folder = made(tmp_path / "c", pictures, keep="gram", max_pixels=1000)  # all are larger
    assert json.loads((folder / "manifest.json").read_text())["damaged"] == 4
    with pytest.raises(UserError, match=r"something else: --reading.max-pixels: 1000 → 2000. Use another --out"):
        made(folder, pictures, keep="gram", max_pixels=2000)
    assert "max_pixels" not in json.loads((made(tmp_path / "d", pictures) / "plan.json").read_text())


def test_what_does_not_fit_is_refused(pictures, tmp_path):
    folder = made(tmp_path / "c", pictures, "8bit", "gram")
    with pytest.raises(UserError, match=r"something else: the teacher: local 0 → local 1; the teacher's weights"):
        make_cache(folder, {"train": pictures}, local_teacher(seed=1), layout=CacheLayout(), show=False)
    with pytest.raises(UserError, match=r"something else: the data"):
        make_cache(folder, {"train": Pictures(5)}, local_teacher(), layout=CacheLayout(), show=False)
    cache = opened(folder)
    cache.check_data(pictures)
    with pytest.raises(UserError, match="made of other data"):
        cache.check_data(Pictures(5))
    with pytest.raises(UserError, match="'stranger' is not in"):
        cache(["stranger"], [View()], [])
    with pytest.raises(UserError, match="finer than the 8×8"):
        opened(folder, compare_grid=9)
    with pytest.raises(UserError, match="no text features"):
        opened(folder, tokenizer=Tokenizer())
    with pytest.raises(UserError, match="is no teacher cache"):
        opened(tmp_path)
    shard = folder / "train-00000.bin"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"damaged: train-00000.bin has \d+ bytes instead of"):
        opened(folder)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("")
    with pytest.raises(UserError, match="not empty and not a teacher cache"):
        made(foreign, pictures)


class Impatient(Pictures):
    """Many captions, and nobody waits for the end of the last ones."""

    def captions(self, index):
        return tuple(f"{word} {index} {n}" for n, word in enumerate(("red", "boat", "tree")))


def interrupted(teacher, after: int):
    """The teacher, stopped by Ctrl-C when it is asked once more than `after` times."""
    calls, answer = [], teacher.tokens

    def tokens(captions):
        calls.append(len(captions))
        if len(calls) > after:
            raise KeyboardInterrupt
        return answer(captions)

    teacher.tokens = tokens
    return teacher


def test_captions_that_were_read_survive_a_stop(tmp_path, capsys):
    pictures, layout = Impatient(64), CacheLayout(captions=80)  # 192 captions: files of 80, 80 and 32; 64 at once
    make_cache(tmp_path / "whole", {"train": pictures}, local_teacher(), letter_teacher(), layout, show=False)
    stopped = interrupted(letter_teacher(), after=4)  # one call for the plan, two for the first file, one of the second
    with pytest.raises(KeyboardInterrupt):
        make_cache(tmp_path / "c", {"train": pictures}, local_teacher(), stopped, layout)
    printed = capsys.readouterr()
    assert f"what is finished stays in {tmp_path / 'c'}" in printed.out
    assert "208/256" in printed.err  # all images, and captions batch by batch, also within a file
    assert (tmp_path / "c" / "text-00000.bin").exists() and not (tmp_path / "c" / "text-00001.bin").exists()
    layout = CacheLayout(captions=32)
    make_cache(tmp_path / "c", {"train": pictures}, local_teacher(), letter_teacher(), layout, show=False)
    assert bytes_of(tmp_path / "c") == bytes_of(tmp_path / "whole")  # with the file sizes it was begun with


def test_a_caches_name_stays_and_does_not_depend_on_the_size_of_its_files(monkeypatch):
    pictures = Pictures(4)
    pictures.fingerprint = "abc"
    monkeypatch.setattr(cache_request, "undivided_parts", lambda spec, reading: {"train": pictures})

    def name(layout):
        return cache_request.automatic_folder(CacheSpec("d", "t", layout=layout), ReadingSettings()).name

    layouts = (CacheLayout(), CacheLayout(rows=16), CacheLayout(captions=16384))
    assert {name(layout) for layout in layouts} == {"d-t-471ee31bd76f0583"}  # the name in the first version
    assert name(CacheLayout("both")) == "d-t-d6bb7cac67b939b2"


def test_a_caches_name_tells_what_was_replaced_under_its_old_name(tmp_path):
    for n in range(4):
        (tmp_path / f"{n}.jpg").write_bytes(b"picture")
    (tmp_path / "t.csv").write_text("image,caption\n" + "".join(f"{n}.jpg,a cat\n" for n in range(4)))
    (tmp_path / "text").mkdir()
    for file in ("w.pt", "text/a.bin"):
        (tmp_path / file).write_bytes(bytes(100_000))
    teacher, text_teacher = f"timm:vit:{tmp_path / 'w.pt'}", f"minilm:{tmp_path / 'text'}"
    spec = CacheSpec(str(tmp_path / "t.csv"), teacher, text_teacher=text_teacher)
    names = [cache_request.automatic_folder(spec, ReadingSettings())]
    for file in ("w.pt", "0.jpg"):
        os.utime(tmp_path / file, ns=(1, 1))  # copied to another disk
    assert cache_request.automatic_folder(spec, ReadingSettings()) == names[0]
    names.append(cache_request.automatic_folder(spec, ReadingSettings(max_pixels=10**9)))
    for file, data in (
        ("w.pt", bytes(50_000) + b"x" * 50_000),  # other weights of the same shape
        ("text/a.bin", b"x" * 100_000),
        ("3.jpg", b"another picture"),
    ):
        (tmp_path / file).write_bytes(data)
        names.append(cache_request.automatic_folder(spec, ReadingSettings()))
    assert len(set(names)) == 5


def test_weights_below_the_home_folder_are_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "w.pt").write_bytes(b"weights")
    sample = cache_request._weights_sample
    assert sample("timm:vit:~/w.pt") == sample(f"timm:vit:{tmp_path}/w.pt") != ""


def test_only_so_many_files_stay_open(pictures, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    layout = CacheLayout("both", "fp32", rows=1, captions=2)
    make_cache(folder, {"train": pictures}, local_teacher(), text_teacher=letter_teacher(), layout=layout, show=False)
    keys = [pictures.key(index) for index in (0, 1, 2, 3, 1, 0)]
    captions = [pictures.texts[index] for index in (0, 1, 2, 3, 1, 0)]
    tokenizer = Tokenizer(TextSpec(context_length=16))
    expected = opened(folder, tokenizer=tokenizer)(keys, [View()] * 6, captions)
    monkeypatch.setattr(cache_read, "FEWEST_MAPS", 2)
    monkeypatch.setattr(cache_read, "most_open_files", lambda: (4, 4))
    few = opened(folder, tokenizer=tokenizer)
    cached = few(keys, [View()] * 6, captions)
    assert len(few._maps) == 2 and expected.keys() == cached.keys()
    assert all(torch.equal(expected[name], cached[name]) for name in expected)


def test_a_flipped_bit_is_refused_when_its_file_is_used(pictures, tmp_path):
    folder = made(tmp_path / "cache", pictures)
    keys = [pictures.key(index) for index in range(4)]
    good = opened(folder).images(keys, BOXES)
    for name in ("train-00000.bin", "train.keys.npy", "plan.json", "manifest.json", "basis.safetensors"):
        path = folder / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2 + 3] ^= 1
        path.write_bytes(data)
        with pytest.raises(UserError, match=f"{name} is damaged"):
            opened(folder).images(keys, BOXES)
        data[len(data) // 2 + 3] ^= 1
        path.write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["hashes"].keys() == manifest["files"].keys() | {"plan.json"}
    del manifest["hashes"], manifest["checksum"]  # as older versions wrote it
    (folder / "manifest.json").write_text(json.dumps(manifest))
    again = opened(folder).images(keys, BOXES)
    assert all(torch.equal(good[name], again[name]) for name in good)
