"""Files and folders are whole or as before; locks exclude each other and leave no file; caches have one home."""

import errno
import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dinorankclip import io
from dinorankclip.io import home, if_free, one_at_a_time, whole_file, whole_folder, write_json, write_text
from dinorankclip.types import UserError
from tests.systems import POSIX


def test_a_file_takes_its_place_at_the_end(tmp_path):
    path = tmp_path / "a.json"
    write_text(path, "before")
    with whole_file(path) as aside:
        aside.write_text("after")
        assert path.read_text() == "before" and aside.parent == path.parent
    assert path.read_text() == "after"
    write_json(path, {"ü": [1, 2]})
    assert json.loads(path.read_text(encoding="utf-8")) == {"ü": [1, 2]}
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_file_that_was_there(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as aside:
        aside.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_with_all_it_holds(tmp_path):
    out = tmp_path / "deep" / "out"
    with whole_folder(out) as aside:
        (aside / "one").write_text("1")
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["one"] and list(out.parent.iterdir()) == [out]
    with pytest.raises(OSError), whole_folder(out):  # what is there is never overwritten
        pass
    assert (out / "one").read_text() == "1" and list(out.parent.iterdir()) == [out]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path):
    out = tmp_path / "out"
    left = tmp_path / f".out.{platform.node()}.{os.getpid()}.unfinished"
    left.mkdir()
    (left / "half").write_text("x")
    out.mkdir()  # an empty folder that the user made counts as absent
    with whole_folder(out) as aside:
        assert list(aside.iterdir()) == []
    assert out.is_dir() and list(tmp_path.iterdir()) == [out]


def test_a_lock_is_free_again_and_leaves_no_file(tmp_path):
    with if_free("run", tmp_path) as first:
        with if_free("run", tmp_path) as second, if_free("other", tmp_path) as other:
            assert (first, second, other) == (True, False, True)
        with if_free("run", tmp_path) as third:
            assert not third  # who was refused has not taken the lock away
    with if_free("run", tmp_path) as again:
        assert again
    assert list(tmp_path.iterdir()) == []


def test_only_one_at_a_time_though_the_file_comes_and_goes(tmp_path):
    """Threads open the file each for themselves, so they exclude each other as processes do."""
    count = tmp_path / "count"
    count.write_text("0")

    def work():
        for _ in range(100):
            with one_at_a_time("count", tmp_path):
                count.write_text(str(int(count.read_text()) + 1))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert count.read_text() == "800" and [path.name for path in tmp_path.iterdir()] == ["count"]


@POSIX
def test_a_disk_without_locks_stops_nobody(tmp_path, monkeypatch):
    def no_locks(handle, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with one_at_a_time("work", tmp_path), if_free("work", tmp_path) as free:
        assert free
    with if_free("work", Path(os.devnull) / "folder") as free:  # nor does a folder that cannot be made
        assert free


def test_caches_lie_under_the_home_that_the_environment_names(monkeypatch):
    monkeypatch.delenv("DINORANKCLIP_HOME", raising=False)
    assert home() == Path("built")
    code = "from dinorankclip import io; from dinorankclip.data.open_data import SCENES; print(io.INDEX_FOLDER, SCENES)"
    environment = os.environ | {"DINORANKCLIP_HOME": "elsewhere"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.split() == [str(Path("elsewhere/index")), str(Path("elsewhere/scenes"))]


@POSIX
def test_folders_of_killed_processes_are_removed_by_the_next_writer(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = {"dead": f".out.{platform.node()}.{ended.pid}", "alive": f".out.{platform.node()}.{os.getppid()}"}
    names |= {"elsewhere": ".out.another.1", "other": f".others.{platform.node()}.{ended.pid}"}
    left = {name: tmp_path / f"{text}.unfinished" for name, text in names.items()}
    for folder in left.values():
        folder.mkdir()
        (folder / "half").write_text("x")
    (tmp_path / f".out.{platform.node()}.{ended.pid}0.unfinished").symlink_to(tmp_path / "precious")
    with whole_folder(tmp_path / "out"):
        assert {name for name, folder in left.items() if folder.exists()} == {"alive", "elsewhere", "other"}
    for folder in left.values():
        if folder.exists():
            os.utime(folder, (0, 0))  # older than a day
    with whole_folder(tmp_path / "out", replace=True):
        assert {name for name, folder in left.items() if folder.exists()} == {"other"}


def test_a_folder_whose_writer_lives_in_another_container_stays(tmp_path):
    """Its process id means nothing here, but it holds the lock of its folder."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = tmp_path / f".out.{platform.node()}.{ended.pid}.unfinished"
    folder.mkdir()
    with io._in_use(folder):
        io.remove_unfinished(tmp_path / "out")
        assert folder.exists()
    io.remove_unfinished(tmp_path / "out")
    assert not folder.exists()


def test_files_of_killed_processes(tmp_path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for process in (ended.pid, os.getpid()):
        (tmp_path / f".a.json.{platform.node()}.{process}").write_text("half")
    (tmp_path / ".hidden").write_text("mine")
    io.remove_left_files(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [f".a.json.{platform.node()}.{os.getpid()}", ".hidden"]
    )


def test_a_folder_is_replaced_at_once(tmp_path):
    out = tmp_path / "out"
    for text in ("first", "second"):
        with whole_folder(out, replace=True) as aside:
            (aside / text).write_text(text)
        assert [path.name for path in out.iterdir()] == [text] and list(tmp_path.iterdir()) == [out]


@POSIX
def test_links_are_not_followed(tmp_path):
    precious, path = tmp_path / "precious", tmp_path / "a.txt"
    precious.write_text("mine")
    (tmp_path / f".a.txt.{platform.node()}.{os.getpid()}").symlink_to(precious)
    write_text(path, "new")
    assert precious.read_text() == "mine" and path.read_text() == "new"
    path.unlink()
    path.symlink_to(precious)
    write_text(path, "newer")  # the link itself is replaced
    assert precious.read_text() == "mine" and path.read_text() == "newer" and not path.is_symlink()
    (tmp_path / "run.lock").symlink_to(precious)
    with pytest.raises(UserError, match=r"run\.lock is a link"), if_free("run", tmp_path):
        pass
    assert precious.read_text() == "mine"
    aside = tmp_path / f".out.{platform.node()}.{os.getpid()}.unfinished"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "kept").write_text("mine")
    aside.symlink_to(tmp_path / "folder")
    with whole_folder(tmp_path / "out") as made:
        (made / "one").write_text("1")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["kept"]


def test_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(OSError) as error, whole_file(tmp_path / "a.bin"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert error.value.filename == str(tmp_path / "a.bin")


def test_a_folder_that_cannot_be_written_is_refused_early(tmp_path):
    io.demand_writable(tmp_path / "new", "give --out")
    assert list((tmp_path / "new").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/scores cannot be written \(Not a directory\): give --out"):
        io.demand_writable(tmp_path / "file" / "scores", "give --out")
