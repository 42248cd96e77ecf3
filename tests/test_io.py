"""Files and folders are there whole, or as they were before."""

import json
import os
import platform

import pytest

from dinorankclip.io import whole_file, whole_folder, write_json, write_text


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
