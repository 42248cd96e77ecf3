"""A changed byte anywhere in a sealed folder or object is refused by name, or changes nothing that is read."""

import hashlib
import json
import subprocess

import pytest

from dinorankclip.checksums import (
    CHECKSUMS,
    DamagedFile,
    check_folder,
    read_checksums,
    read_sealed,
    seal_folder,
    sealed,
)
from dinorankclip.io import write_json
from tests.systems import LINUX


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "inside").mkdir()
    (tmp_path / "model.json").write_text('{"a": 1}\n')
    (tmp_path / "inside" / "weights").write_bytes(bytes(range(40)))
    seal_folder(tmp_path)
    return tmp_path


@LINUX
def test_the_hashes_are_those_that_everybody_computes(folder):
    expected = {
        "model.json": hashlib.sha256(b'{"a": 1}\n').hexdigest(),
        "inside/weights": hashlib.sha256(bytes(range(40))).hexdigest(),
    }
    assert read_checksums(folder) == expected
    check_folder(folder)
    checked = subprocess.run(["sha256sum", "-c", CHECKSUMS], cwd=folder, capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stdout.count(": OK") == 2, checked.stderr


@pytest.mark.parametrize("name", ["model.json", "inside/weights", CHECKSUMS])
def test_every_flipped_byte_is_refused_by_the_name_of_its_file(folder, name):
    path = folder / name
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(Exception, match=name) as refusal:
            check_folder(folder)
        assert isinstance(refusal.value, DamagedFile) or "UTF-8" in str(refusal.value)
    path.write_bytes(data[:-3])
    with pytest.raises(DamagedFile, match=f"{name} is damaged"):
        check_folder(folder)


def test_skipped_missing_and_old(folder):
    (folder / "model.json").write_text("{}")
    check_folder(folder, skip=("model.json",))
    (folder / "model.json").unlink()  # its reader will say so
    check_folder(folder)
    (folder / "model.json").write_text("{}")
    (folder / CHECKSUMS).unlink()  # as older versions wrote it
    check_folder(folder)
    assert read_checksums(folder) == {}


def test_a_folder_inside_with_hashes_of_its_own_is_left_to_itself(folder):
    seal_folder(folder / "inside")
    seal_folder(folder)
    assert list(read_checksums(folder)) == ["model.json"]


def test_a_sealed_object_is_read_as_written_or_refused(tmp_path):
    path, value = tmp_path / "scores.json", {"b": 0.1, "a": {"10": [1, None, float("inf")], "2": "ü"}, "step": 3}
    write_json(path, sealed(value))
    assert read_sealed(path) == value
    data, refused = path.read_bytes(), 0
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        try:
            found = read_sealed(path)
        except Exception as error:
            assert "scores.json" in str(error)
            refused += 1
        else:  # white space, or the name of the checksum itself
            assert {name: found.get(name) for name in value} == value
    assert refused > 0.7 * len(data)
    write_json(path, value)
    assert read_sealed(path) == value  # an older version wrote no checksum
    write_json(path, sealed({3: "numbers become texts", 20: 0}))
    assert read_sealed(path) == {"3": "numbers become texts", "20": 0}
    assert json.loads(path.read_text()).keys() == {"3", "20", "checksum"}
