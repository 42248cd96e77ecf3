"""The catalogue: complete, and strict about what carries a known name."""

import pytest

from dinorankclip.data.benchmark_sets import SetLocation, find_sets, open_set
from dinorankclip.evaluate.catalogue import catalogue, catalogue_table
from dinorankclip.types import UserError
from tests.set_making import write_classes

PAPER = """ImageNet1K, ImageNetV2 matched frequency, ImageNetV2 threshold 0.7, ImageNetV2 top images, ImageNet-R,
MSCOCO 5K, CIFAR-10, CIFAR-100, DTD, FGVC-Aircraft, Food-101, GTSRB, OxfordPets, RenderedSST2, STL10, SVHN,
CUB-200, StanfordCars, Flowers-102"""


def test_all_sets_of_the_paper_are_there_with_a_way_to_get_them():
    sets = catalogue().sets
    assert {listed.title for listed in sets.values()} == {name.strip() for name in PAPER.replace("\n", " ").split(",")}
    for listed in sets.values():
        assert listed.sizes["test"] and (listed.classes or listed.name == "mscoco_captions")
        assert listed.source.startswith(("hf download clip-benchmark/wds_", "dinorankclip data pack-classes "))
        assert f"{listed.name:<26}{listed.title}" in catalogue_table()
    assert sum("probe" in listed.tasks for listed in sets.values()) == 13  # ten, and three that are fine-grained only
    assert sum("fine-grained" in listed.tasks for listed in sets.values()) == 5
    for shift in catalogue().shifts[:1]:
        assert {shift.base, *shift.renditions} <= sets.keys()


def test_a_set_is_known_by_its_name_or_by_the_published_one():
    known = catalogue()
    assert known.find("pets") is known.find("wds_vtab-pets") is known.find("vtab-pets") is not None
    assert known.find("cub100") is None


def test_counts_that_do_not_match_are_refused_with_both_numbers(tmp_path):
    pets = open_set(SetLocation("pets", str(write_classes(tmp_path / "pets")), listed=True))
    with pytest.raises(UserError, match="has 4 classes; OxfordPets has 37"):
        catalogue().check(pets, "test", 3669)
    names = tuple(f"breed {n}" for n in range(37))
    pets = open_set(SetLocation("pets", str(write_classes(tmp_path / "pets", names=names)), listed=True))
    catalogue().check(pets, "test", 3669)
    catalogue().check(pets, "train", 2944)
    catalogue().check(pets, "train", 3680)
    with pytest.raises(UserError, match=r"has 3000 test images; OxfordPets has 3669.*\n  hf download"):
        catalogue().check(pets, "test", 3000)
    with pytest.raises(UserError, match="OxfordPets has 2944 or 3680"):
        catalogue().check(pets, "train", 100)
    mine = open_set(SetLocation("mine", str(write_classes(tmp_path / "mine")), listed=True))
    assert catalogue().check(mine, "test", 12) == ""


def test_counts_of_a_set_given_by_its_path_are_noted_and_not_refused(tmp_path):
    pets = open_set(*find_sets(str(write_classes(tmp_path / "pets"))))
    assert (
        catalogue()
        .check(pets, "test", 12)
        .endswith("has 4 classes; OxfordPets has 37: scores are not those of the whole set")
    )


def test_a_name_becomes_a_folder_or_advice(tmp_path):
    (tmp_path / "wds_food101").mkdir()
    assert catalogue().locate("food101", tmp_path) == SetLocation("food101", str(tmp_path / "wds_food101"), listed=True)
    with pytest.raises(UserError, match=r"SVHN is not in .*\n  hf download clip-benchmark/wds_vtab-svhn"):
        catalogue().locate("svhn", tmp_path)
    with pytest.raises(UserError, match="no 'svnh'"):
        catalogue().locate("svnh", tmp_path)
