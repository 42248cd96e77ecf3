"""Damaged files are refused in words, healed or read; counts of planted damage are exact. Few examples: the programs
themselves take as many as one likes."""

import os

import pytest

from tools.fuzz_inputs import OUTCOMES, fuzz, table_text
from tools.fuzzed_data import data_kinds, prepare_data
from tools.fuzzed_files import prepare, project_kinds
from tools.plant_damage import FAULTS, LIES, READERS, check


@pytest.fixture(scope="module", autouse=True)
def caches(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("dinorankclip.io.INDEX_FOLDER", tmp_path_factory.mktemp("caches"))
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("fuzzed") / "files")


@pytest.mark.parametrize("kind", project_kinds(), ids=lambda kind: kind.path)
def test_damaged_project_files(files, kind):
    table, lost = fuzz([kind], files, 4, seed=7)
    assert lost == [] and table[kind.path].total() == 4
    assert table_text(table).split()[:8] == ["file", "tried", *OUTCOMES]


def test_damaged_data(files):
    prepare_data(files)
    kinds = data_kinds(files)
    table, lost = fuzz(kinds, files, 3, seed=5)
    assert lost == [] and sum(counts.total() for counts in table.values()) == 3 * len(kinds)


@pytest.mark.parametrize("reader", READERS)
def test_planted_damage_is_counted_exactly(reader):
    planted, exact = check(reader, 250, seed=3)
    assert exact and planted.causes.total() + len(planted.good) == 250
    faults = {fault.name for fault in FAULTS if reader in fault.readers} | (set(LIES) if reader == "tar" else set())
    assert faults | {"none"} == planted.faults.keys()


def test_the_files_need_no_network():
    assert os.environ["HF_HUB_OFFLINE"] == "1"
