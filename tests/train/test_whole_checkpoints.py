"""A damaged checkpoint is set aside aloud, and the run goes on from the one before it; without one it says how."""

import shutil

import pytest

from dinorankclip.checksums import CHECKSUMS, sealing
from dinorankclip.train import checkpoints
from dinorankclip.train.whole_checkpoints import fault_of, newest_whole
from dinorankclip.types import UserError
from tests.train.running import command, run_to_end, small_pairs, weights
from tests.train.test_checkpoints import trained
from tests.train.test_resume import same

FILES = ("model.json", "model.safetensors", "training.json", "training.safetensors", CHECKSUMS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder, state = tmp_path_factory.mktemp("saved"), trained()
    for state.step in (1, 2, 3):
        state.best_step = 3
        checkpoints.save(state, folder, keep=5)
    sealing.wait()
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints", symlinks=True)


def flip(path, place=-30):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_sends_the_run_one_checkpoint_back(folder, name, capsys):
    assert newest_whole(folder).name == "step-3" and capsys.readouterr().out == ""
    flip(folder / "step-3" / name)
    assert newest_whole(folder).name == "step-2"
    said = capsys.readouterr().out
    assert (
        name in said and f"set aside as {folder / 'damaged-step-3'}" in said and "goes on from the one before" in said
    )
    assert (folder / "last").resolve().name == "step-2" and not (folder / "best").is_symlink()
    assert (folder / "damaged-step-3" / name).is_file()


def test_a_kill_between_rename_and_links_leaves_no_old_links(folder):
    """Without another step, nothing else would mend them, and `last` is what studies score."""
    for name, old in (("last", "step-2"), ("best", "step-1")):
        (folder / name).unlink()
        (folder / name).symlink_to(old)
    assert newest_whole(folder).name == "step-3"
    assert [(folder / name).resolve().name for name in ("last", "best")] == ["step-3", "step-3"]
    (folder / "last").unlink()
    (folder / "best").unlink()
    assert newest_whole(folder).name == "step-3"
    assert [(folder / name).readlink().name for name in ("last", "best")] == ["step-3", "step-3"]
    (folder / "last").unlink()
    shutil.copytree(folder / "step-2", folder / "last")  # a copy of a run on a disk without links
    assert newest_whole(folder).name == "step-3" and (folder / "last" / "model.json").is_file()


def test_what_a_kill_left_is_removed_without_another_step(folder):
    (folder / "step-3" / ".checksums.sha256.host.4711").touch()
    (folder / ".writing-step-4").mkdir()
    newest_whole(folder)
    assert not list(folder.rglob(".*"))


def test_two_damaged_checkpoints_and_a_name_that_is_taken(folder):
    (folder / "damaged-step-3").mkdir()
    (folder / "step-3" / "training.json").unlink()
    flip(folder / "step-2" / "model.safetensors")
    assert newest_whole(folder).name == "step-1"
    assert {path.name for path in folder.glob("damaged-*")} == {"damaged-step-3", "damaged-step-3-2", "damaged-step-2"}


def test_without_a_whole_checkpoint_nothing_is_touched_and_the_way_on_is_named(folder):
    for step in (1, 2, 3):
        flip(folder / f"step-{step}" / "training.safetensors")
    with pytest.raises(UserError, match=r"step-3/training.safetensors is damaged.*from a backup.*--restart"):
        newest_whole(folder)
    assert len(checkpoints.whole(folder)) == 3


def test_checkpoints_of_older_versions_have_no_hashes(folder):
    (folder / "step-3" / CHECKSUMS).unlink()
    assert fault_of(folder / "step-3") == ""
    path = folder / "step-3" / "training.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    assert "cut short" in fault_of(folder / "step-3") and newest_whole(folder).name == "step-2"
    assert newest_whole(folder / "nowhere") is None


def test_a_run_with_a_damaged_checkpoint_ends_as_the_undisturbed_one(tmp_path):
    pairs = small_pairs(tmp_path / "pairs", train=32)
    for name in ("whole", "hurt"):
        run_to_end(command(pairs, tmp_path / name, "--budget.steps", "6"))
    hurt = tmp_path / "hurt"
    (hurt / "scores.json").unlink()
    flip(hurt / "checkpoints" / "step-6" / "model.safetensors", 5000)
    done = run_to_end(command(pairs, hurt, "--budget.steps", "6"))
    assert "set aside as" in done.stdout and "2 of 6 steps to go" in done.stdout
    assert same(weights(tmp_path / "whole"), weights(hurt))
