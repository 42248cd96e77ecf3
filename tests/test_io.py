"""Files and folders are whole or as before; locks exclude each other and leave no file; caches have one home."""

import json
import os
import platform
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dinorankclip.io import home, if_free, one_at_a_time, whole_file, whole_folder, write_json, write_text


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
