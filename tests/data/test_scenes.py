"""The built-in scenes: same bytes always, true captions, relevance worked by hand, nothing half-made left behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dinorankclip.data.scenes import make
from dinorankclip.data.scenes.composition import box, holding
from dinorankclip.data.scenes.drawing import COLOURS
from dinorankclip.data.scenes.kinds import FAMILIES, GROUPS, KINDS, members
from dinorankclip.data.scenes.make import captioned_scene, make_scenes
from dinorankclip.data.scenes.relevance import relevance_matrix
from dinorankclip.data.scenes.rendering import RENDITIONS, render
from dinorankclip.data.scenes.scene import (
    CaptionContent,
    Chance,
    MentionedThing,
    Scene,
    Thing,
    contents_from_json,
    scene_from_json,
    to_json,
)
from dinorankclip.data.scenes.wording import CAPTIONS, PATTERN_WORDS, SIZE_WORDS, article, listed, with_adjectives
from dinorankclip.types import UserError
from tests.data.scene_oracles import caption_relevance, relevance

SMALL = {"train": 40, "val": 8, "test": 8, "kinds_train": 8, "kinds_test": 8, "fine_train": 8, "fine_test": 8}


@pytest.fixture(scope="module")
def captioned_scenes():
    return [captioned_scene(0, "train", index) for index in range(400)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_scenes(tmp_path_factory.mktemp("scenes") / "made", workers=1, **SMALL)


def thing(kind="mug", colour="red", pattern="plain", size="small", x=0.2, y=0.2, side=0.25):
    return Thing(kind, colour, pattern, size, x, y, side)


# --- what can be drawn --------------------------------------------------------------------------------


def test_enough_kinds_groups_families_and_renditions():
    assert len(KINDS) >= 40
    assert {kind.group for kind in KINDS.values()} == set(GROUPS) and len(GROUPS) >= 8
    assert len(RENDITIONS) - 1 >= 3
    assert all(len(members(family)) >= 3 for family in FAMILIES)
    assert all(kind.colours and set(kind.colours) <= set(COLOURS) for kind in KINDS.values())


def test_each_kind_is_drawn_within_reach_of_the_unit_square():
    for kind in KINDS.values():
        left, top, right, bottom = kind.bounds
        assert -0.2 <= left < right <= 1.2 and -0.2 <= top < bottom <= 1.2, kind.name
        assert kind.seat is None or top <= kind.seat < bottom, kind.name


@pytest.mark.parametrize("family", FAMILIES)
def test_siblings_differ_when_drawn(family):
    pictures = set()
    for name in members(family):
        scene = Scene("snow", (Thing(name, "red", "plain", "large", 0.5, 0.5, 0.8),))
        pictures.add(render(scene, Chance(0, "siblings", 0, "drawing"), 64).tobytes())
    assert len(pictures) == len(members(family))


@pytest.mark.parametrize("rendition", [name for name in RENDITIONS if name != "plain"])
def test_renditions_really_look_different(rendition):
    scene = captioned_scene(0, "test", 3).scene
    pictures = (render(scene, Chance(0, "r", 3, "drawing"), 64, name) for name in ("plain", rendition))
    plain, other = (np.asarray(picture, float) for picture in pictures)
    assert np.abs(plain - other).mean() > 10


def test_a_thing_shows_its_colour_and_place():
    scene = Scene("night sky", (thing("ball", "yellow", x=0.25, y=0.75, side=0.4),))
    picture = np.asarray(render(scene, Chance(0, "place", 0, "drawing"), 64), float)
    yellow = np.abs(picture - COLOURS["yellow"]).sum(-1) < 90
    rows, columns = np.nonzero(yellow)
    assert abs(columns.mean() / 64 - 0.25) < 0.03 and abs(rows.mean() / 64 - 0.75) < 0.03


# --- scenes and relations -----------------------------------------------------------------------------


def test_things_stay_in_the_picture_and_clear_of_each_other(captioned_scenes):
    for captioned in captioned_scenes:
        boxes = [box(t) for t in captioned.scene.things]
        assert 1 <= len(boxes) <= 4
        assert all(min(b[:2]) >= 0 and max(b[2:]) <= 1 for b in boxes)
        for i, a in enumerate(captioned.scene.things):
            for j, b in enumerate(captioned.scene.things[:i]):
                apart = boxes[i][0] >= boxes[j][2] or boxes[j][0] >= boxes[i][2]
                apart = apart or boxes[i][1] >= boxes[j][3] or boxes[j][1] >= boxes[i][3]
                assert apart or "on" in holding(a, b) | holding(b, a)


def test_relations_are_the_viewers():
    low_left, low_right, high = thing(x=0.2, y=0.8), thing(x=0.8, y=0.8), thing(x=0.2, y=0.2)
    assert holding(low_left, low_right) == {"left"} and holding(low_right, low_left) == {"right"}
    assert holding(high, low_left) == {"above"} and holding(low_left, high) == {"below"}
    assert holding(high, low_right) == frozenset()  # as much above as to the left: neither word is plain
    near = thing(x=0.2 + box(low_left)[2] - box(low_left)[0] + 0.05, y=0.8)
    assert holding(low_left, near) == {"left", "beside"}


def test_on_means_resting_on_the_seat():
    table = thing("table", side=0.5, x=0.5, y=0.7)
    top = box(table)[1]  # a table's seat is its upper edge
    ball = thing("ball", side=0.2, x=0.5)
    assert "on" in holding(replace(ball, y=top - 0.1), table)
    assert "on" not in holding(replace(ball, y=top - 0.15), table)
    assert "on" not in holding(table, replace(ball, y=top - 0.1))


# --- captions -----------------------------------------------------------------------------------------


def test_captions_say_only_what_is_there(captioned_scenes):
    relations = set()
    for captioned in captioned_scenes:
        for content in captioned.contents:
            assert _true(content, captioned.scene)
            assert caption_relevance(content, captioned.scene) == 1.0
            relations |= {word for _, word, _ in content.relations}
    assert relations == {"left", "right", "above", "below", "beside", "on"}


def _true(content: CaptionContent, scene: Scene) -> bool:
    """Checked anew, by search over assignments and without the library's matching."""
    if content.background not in (None, scene.background):
        return False

    def fits(mentioned: MentionedThing, t: Thing) -> bool:
        kind = KINDS[t.kind]
        facts = vars(t) | {"family": kind.family, "group": kind.group, "column": t.column, "row": t.row}
        return all(value is None or facts[name] == value for name, value in vars(mentioned).items())

    def search(chosen: list[Thing]) -> bool:
        if len(chosen) == len(content.things):
            return all(word in holding(chosen[i], chosen[j]) for i, word, j in content.relations)
        rest = [t for t in scene.things if all(t is not c for c in chosen)]
        return any(fits(content.things[len(chosen)], t) and search([*chosen, t]) for t in rest)

    return search([])


def test_words_follow_the_content(captioned_scenes):
    """Colours, sizes and patterns in the text are those of the structured content, and the other way round."""
    colour_word = re.compile(r"\b(" + "|".join(COLOURS) + r")\b")
    for captioned in captioned_scenes:
        for text, content in zip(captioned.captions, captioned.contents):
            text = text.replace("green field", "field")
            assert {mentioned.colour for mentioned in content.things} - {None} == set(colour_word.findall(text.lower()))
            for size, words in SIZE_WORDS.items():
                assert any(s.size == size for s in content.things) == any(re.search(rf"\b{w}\b", text) for w in words)
            for pattern in PATTERN_WORDS:
                roots = {"striped": "strip", "spotted": "spot|dot", "checkered": "check"}
                assert any(s.pattern == pattern for s in content.things) == bool(re.search(roots[pattern], text))
            sides = {word for _, word, _ in content.relations} | {s.column for s in content.things}
            for side in ("left", "right"):
                assert (side in sides) == bool(re.search(rf"\b{side}\b", text)), text


def test_counts_count_all_of_a_kind(captioned_scenes):
    plurals = {KINDS[name].noun.plural: name for name in KINDS if KINDS[name].noun.plural != name}
    counted = 0
    for captioned in captioned_scenes:
        for text in captioned.captions:
            match = re.search(r"\b(two|three|four) ((?:[\w-]+ ){0,4}?)(" + "|".join(plurals) + r")\b", text.lower())
            if match and " and " not in match[2]:
                kinds = [t.kind for t in captioned.scene.things]
                assert kinds.count(plurals[match[3]]) == {"two": 2, "three": 3, "four": 4}[match[1]], text
                counted += 1
    assert counted > 20


def test_captions_read_well(captioned_scenes):
    for captioned in captioned_scenes:
        assert len(captioned.captions) == len(captioned.contents) == CAPTIONS
        for text in captioned.captions:
            assert text[0].isupper() and text.endswith(".") and "  " not in text and " ," not in text
            assert not re.search(r"\ba [aeiou]", text, re.I) and not re.search(r"\ban [^aeiou]", text, re.I), text
            single = re.search(r"\b(a|an|one|another) ([\w-]+ )*?(?<!of )(scissors|trousers|pants)\b", text)
            assert not single or "pair of" in text, text
            assert not re.search(r"\bthere is (two|three|four)\b|\bthere are (a|an|one)\b", text, re.I), text


def test_captions_vary(captioned_scenes):
    assert np.mean([len(set(c.captions)) for c in captioned_scenes]) > 4.8
    assert len({text.split()[0] for c in captioned_scenes for text in c.captions}) > 10


def test_grammar():
    assert [article(w) for w in ("orange mug", "Axe", "red axe", "T-shirt")] == ["an", "an", "a", "a"]
    assert with_adjectives("pair of scissors", ["small", "red"]) == "pair of small red scissors"
    assert with_adjectives("pairs of scissors", ["red"]) == "pairs of red scissors"
    assert with_adjectives("mug", []) == "mug"
    assert [listed(list(x)) for x in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]


def test_json_round_trip(captioned_scenes):
    first = captioned_scenes[0]
    data = json.loads(json.dumps(to_json(first)))
    assert scene_from_json(data) == first.scene and contents_from_json(data) == first.contents


# --- relevance ----------------------------------------------------------------------------------------

ONE = Scene("beach", (thing(),))


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (ONE, 1.0),
        (replace(ONE, background="snow"), 0.85),
        (Scene("snow", (thing(colour="blue"),)), 0.85 * 0.76),
        (Scene("snow", (thing("tumbler"),)), 0.85 * 0.7),  # a sibling, alike in all else
        (Scene("snow", (thing("bowl", colour="blue"),)), 0.85 * 0.3 * 0.76),  # the same group
        (Scene("snow", (thing("cat", "black", "striped", "large", 0.8, 0.8),)), 0.85 * 0.1 * 0.4),
        (Scene("beach", (thing(x=0.5), thing("cat", "black", "striped", "large", 0.8, 0.8))), 0.15 + 0.85 * 0.93 / 2),
        # Matched the better way round: the red mug with the red mug, the blue tumbler with nothing.
        (Scene("snow", (thing("tumbler", "blue"), thing())), 0.85 / 2),
    ],
)
def test_relevance_by_hand(other, expected):
    assert relevance(ONE, other) == pytest.approx(expected, abs=1e-12)
    assert relevance(other, ONE) == relevance(ONE, other)


def test_relevance_matches_things_the_best_way():
    a = Scene("snow", (thing("mug"), thing("tumbler")))
    b = Scene("snow", (thing("tumbler"), thing("mug", colour="blue")))
    assert relevance(a, b) == pytest.approx(0.15 + 0.85 * (1 + 0.76) / 2, abs=1e-12)


def test_relevance_matrix_equals_the_slow_form(captioned_scenes):
    scenes = [captioned.scene for captioned in captioned_scenes[:40]]
    fast = relevance_matrix(scenes, block=7)
    slow = np.array([[relevance(a, b) for b in scenes] for a in scenes], np.float32)
    assert np.array_equal(fast, slow) and np.array_equal(fast, fast.T)
    assert (np.diag(fast) == 1).all() and fast.min() >= 0 and (fast[~np.eye(40, dtype=bool)] < 1).all()
    assert np.array_equal(relevance_matrix(scenes[:3], scenes), slow[:3])


def test_caption_relevance_by_hand():
    scene = Scene("beach", (thing("mug", "red", x=0.2), thing("cat", "black", x=0.8)))

    def fit(*things, **rest):
        return caption_relevance(CaptionContent(things, **rest), scene)

    mug, cat = MentionedThing(kind="mug"), MentionedThing(kind="cat")
    assert fit(replace(mug, colour="red")) == 1.0
    assert fit(replace(mug, colour="blue")) == pytest.approx(40 / 64)
    assert fit(MentionedThing(kind="tumbler")) == pytest.approx(0.7)
    assert fit(MentionedThing(family="cups"), background="snow") == pytest.approx(0.5)
    assert fit(mug, cat, relations=((0, "left", 1),)) == 1.0
    assert fit(mug, cat, relations=((1, "left", 0),)) == pytest.approx(2 / 3)
    assert fit(mug, mug, mug) == pytest.approx((1 + 0.1) / 3)


# --- on disk ------------------------------------------------------------------------------------------


def _files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_bytes_do_not_depend_on_the_number_of_workers(made, tmp_path):
    assert _files(make_scenes(tmp_path / "two", workers=2, **SMALL)) == _files(made)


def test_another_seed_or_split_gives_other_scenes():
    scenes = {captioned_scene(seed, split, 0).scene for seed in (0, 1) for split in ("train", "val", "test")}
    assert len(scenes) == 6


def test_layout(made):
    manifest = json.loads((made / "scenes.json").read_text())
    assert (made / "pairs" / "dataset_type.txt").read_text().strip() == "retrieval"
    for name, count in manifest["counts"].items():
        assert (made / name / "nshards.txt").read_text() == "1\n"
        with tarfile.open(made / name / "0.tar") as tar:
            info = tar.getmembers()
            assert {(m.mtime, m.uname, m.gname, m.mode) for m in info} == {(0, "drc", "drc", 0o644)}
            contents = {m.name: tar.extractfile(m).read() for m in info}
        extensions = {"jpg", "txt", "json"} if name.startswith("pairs") else {"jpg", "cls"}
        keys = {file.partition(".")[0] for file in contents}
        assert len(keys) == count and contents.keys() == {f"{key}.{ext}" for key in keys for ext in extensions}
        if name == "pairs/test":
            captioned = captioned_scene(0, "test", 5)
            assert contents["test-000005.txt"].decode().split("\n") == list(captioned.captions)
            assert scene_from_json(json.loads(contents["test-000005.json"])) == captioned.scene
    assert {"kinds-sketch/test", "kinds-night/test", "kinds-mosaic/test"} <= manifest["counts"].keys()
    fine = (made / "fine" / "classnames.txt").read_text().splitlines()
    families = json.loads((made / "fine" / "families.json").read_text())
    assert sorted(fine) == sorted(name for names in families.values() for name in names)
    assert (made / "kinds" / "classnames.txt").read_text() == (made / "kinds-night" / "classnames.txt").read_text()
    for line in (made / "kinds" / "zeroshot_classification_templates.txt").read_text().splitlines():
        assert "{c}" in line and not re.search(r"\ban? \{c\}", line)


def test_a_fitting_folder_is_left_alone_and_others_are_refused(made, tmp_path, monkeypatch):
    monkeypatch.setattr(make, "make_sample", None)  # nothing is drawn again
    assert make_scenes(made, workers=1, **SMALL) == made
    with pytest.raises(UserError, match="seed: has 0, wanted 1"):
        make_scenes(made, seed=1, workers=1, **SMALL)
    (tmp_path / "photo.jpg").write_bytes(b"")
    with pytest.raises(UserError, match="no built-in scenes"):
        make_scenes(tmp_path, workers=1, **SMALL)


def test_a_failed_run_leaves_nothing(tmp_path, monkeypatch):
    make_sample = make.make_sample

    def fail(job):
        if job.index == 5:
            raise KeyboardInterrupt
        return make_sample(job)

    monkeypatch.setattr(make, "make_sample", fail)
    with pytest.raises(KeyboardInterrupt):
        make_scenes(tmp_path / "made", workers=1, **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_run_is_not_taken_as_whole(tmp_path):
    """Killed for good in the midst of drawing: no folder of that name, and the next run makes it anew."""
    code = f"""
import os
from dinorankclip.data.scenes import make
def die(job):
    if job.part.folder == "kinds":
        os._exit(9)
    return made(job)
made, make.make_sample = make.make_sample, die
make.make_scenes({str(tmp_path / "made")!r}, workers=1, **{SMALL!r})
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    assert not (tmp_path / "made").exists()
    assert [path.name.endswith(".unfinished") for path in tmp_path.iterdir()] == [True]
    assert (make_scenes(tmp_path / "made", workers=1, **SMALL) / "scenes.json").exists()


def test_importing_the_package_is_cheap():
    code = "import sys, dinorankclip.data.scenes; sys.exit(bool({'numpy', 'PIL', 'torch'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
