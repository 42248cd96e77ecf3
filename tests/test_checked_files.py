import os
import socket
import time
import zipfile

import numpy as np
import pytest

from dinorankclip.checked_files import (
    NoRegularFile,
    TooLarge,
    UnfitFile,
    file_bytes,
    parsed_json,
    read_array,
    read_arrays,
    read_json,
    read_object,
)
from dinorankclip.json_shape import COUNT, entries
from tests.systems import LINUX


@LINUX
def test_only_regular_files_are_read(tmp_path):
    os.mkfifo(tmp_path / "fifo")  # opening it would wait for a writer
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name, words in (("fifo", "a FIFO"), ("device", "a device"), ("socket", "a socket")):
            for read in (lambda path: file_bytes(path, 10), read_json, read_arrays, read_array):
                with pytest.raises(NoRegularFile, match=f"{name} is {words}, not a regular file"):
                    read(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        file_bytes(tmp_path, 10)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "nothing")


@LINUX
def test_no_more_bytes_than_allowed(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert file_bytes(tmp_path / "file", 3) == b"abc"
    with pytest.raises(TooLarge, match="has 3 bytes, and at most 2 are read"):
        file_bytes(tmp_path / "file", 2)
    with pytest.raises(TooLarge):
        file_bytes("/proc/self/maps", 10)  # its size is 0 until it is read
    assert file_bytes("/proc/self/stat", 1 << 16)


def test_damaged_json_is_refused_in_words(tmp_path):
    path = tmp_path / "x.json"
    for content, words in (
        (b"[" * 10**5, "nested too deeply"),
        (b"\xff", "damaged"),
        (b"{", "damaged"),
        (b"", "damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(UnfitFile, match=words):
            read_json(path)
        with pytest.raises(ValueError):
            parsed_json(content)
    path.write_bytes(b'{"step": -1}')
    with pytest.raises(UnfitFile, match="step is -1, and a whole number from 0 on was expected"):
        read_object(path, entries({"step": COUNT}))
    path.write_bytes(b"[]")
    with pytest.raises(UnfitFile, match="holds no JSON object"):
        read_object(path)


def test_arrays(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, a=np.arange(1000.0), b=np.zeros(0))
    assert read_arrays(path)["a"].sum() == 499500 and read_arrays(path)["b"].shape == (0,)
    with pytest.raises(TooLarge, match="unpacks to"):
        read_arrays(path, most=100)
    whole = path.read_bytes()
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_arrays(path)
        except UnfitFile as error:
            assert "is damaged" in str(error) or "unpacks to" in str(error)
    with zipfile.ZipFile(path, "w") as packed:
        header = b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }"
        packed.writestr("a.npy", header.ljust(127) + b"\n")
    with pytest.raises(UnfitFile):
        read_arrays(path)


def test_mapped_arrays(tmp_path):
    path = tmp_path / "x.npy"
    for array in (np.arange(5, dtype=np.uint64), np.zeros((0, 3), np.float32)):
        np.save(path, array)
        assert np.array_equal(read_array(path), array)
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UnfitFile):
        read_array(path)
    np.savez(tmp_path / "y.npz", a=np.zeros(2))
    with pytest.raises(UnfitFile, match=r"no \.npy file"):
        read_array(tmp_path / "y.npz")


def test_a_damaged_header_of_an_array_takes_no_time(tmp_path):
    """NumPy takes 17 s to refuse a header of 9,000 letters: a quotation mark is looked for again from every space."""
    path = tmp_path / "rows.npy"
    header = b"{'descr': '|u1', 'fortran_ord\xe5r': False, 'shape': (4,), }" + b" " * 9000 + b'"' + b" " * 60
    path.write_bytes(b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(4))
    begun = time.process_time()
    with pytest.raises(UnfitFile, match=r"rows\.npy is damaged"):
        read_array(path)
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as packed:
        packed.write(path, "rows.npy")
    with pytest.raises(UnfitFile, match=r"rows\.npz is damaged"):
        read_arrays(tmp_path / "rows.npz")
    assert time.process_time() - begun < 3


def test_a_list_of_arrays_that_swallows_arrays_is_damaged(tmp_path):
    """A changed length of a comment hides the arrays behind it, without an error of `zipfile`."""
    path = tmp_path / "rows.npz"
    np.savez(path, a=np.arange(3), b=np.arange(4), c=np.arange(5))
    data = bytearray(path.read_bytes())
    first = data.index(b"PK\1\2")
    data[first + 33] ^= 4  # the comment of the first entry has 1,024 letters
    path.write_bytes(data)
    with pytest.raises(UnfitFile, match="1 of 3 arrays are found"):
        read_arrays(path)


def test_members_that_are_no_arrays_are_damage(tmp_path):
    """NumPy returns their bytes, and readers that asked for a shape ended with a traceback."""
    with zipfile.ZipFile(tmp_path / "rows.npz", "w") as packed:
        packed.writestr("rows.npy", b"\x93NUMPX and so on")
    with pytest.raises(UnfitFile, match=r"rows is no array|rows\.npy is no array"):
        read_arrays(tmp_path / "rows.npz")
