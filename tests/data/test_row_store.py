"""The store of rows: blocks, damage, files that do not fit together, and memory instead of a disk."""

import numpy as np
import pytest

from dinorankclip.data import row_store
from dinorankclip.data.row_store import GOOD, UNREADABLE, RowStore, npy_header


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(row_store, "BLOCK", 4)


def write(store, block, damaged=None):
    causes = np.array([(damaged or {}).get(at, GOOD) for at in block], np.int8)
    usable = [at for at, cause in zip(block, causes) if cause == GOOD]
    store.write(block, np.array([[at, 10 * at] for at in usable], np.float32).reshape(-1, 2), causes)


@pytest.mark.parametrize("on_disk", [True, False])
def test_blocks_in_any_order(tmp_path, on_disk):
    store = RowStore(tmp_path / "rows" if on_disk else None, 10)
    assert store.missing() == [range(0, 4), range(4, 8), range(8, 10)]
    write(store, range(8, 10), {8: 2, 9: UNREADABLE})  # a block without a usable item comes first
    assert store.rows().shape == (10, 0)
    write(store, range(4, 8), {5: 1})
    if on_disk:
        store = RowStore(tmp_path / "rows", 10)
    assert store.missing() == [range(0, 4)]
    write(store, range(4))
    assert store.rows().tolist() == [[n, 10 * n] if n not in (5, 8, 9) else [0, 0] for n in range(10)]
    assert store.causes.tolist() == [-1, -1, -1, -1, -1, 1, -1, -1, 2, UNREADABLE]
    assert store.missing() == [] and store.missing(lambda place: False) == []
    assert store.missing(lambda place: place == 9) == [range(8, 10)]


def test_a_range_of_several_blocks_is_found_again(tmp_path):
    write(RowStore(tmp_path / "rows", 10), range(10), {1: 1, 6: 2, 8: 1, 9: 2})
    found = RowStore(tmp_path / "rows", 10)
    assert found.missing() == []
    assert found.causes.tolist() == [-1, 1, -1, -1, -1, -1, 2, -1, 1, 2]
    assert found.rows().tolist() == [[n, 10 * n] if n not in (1, 6, 8, 9) else [0, 0] for n in range(10)]


def test_rows_without_their_causes_are_not_believed(tmp_path, monkeypatch):
    whole = row_store._write_at

    def killed(path, offset, values):
        if path.name == "causes.npy":
            raise KeyboardInterrupt
        whole(path, offset, values)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(row_store, "_write_at", killed)
        write(RowStore(tmp_path, 4), range(4))
    assert RowStore(tmp_path, 4).missing() == [range(4)]


@pytest.mark.parametrize("name", ["rows.npy", "causes.npy"])
@pytest.mark.parametrize("content", [b"", b"no array", None])
def test_damaged_files_are_computed_anew(tmp_path, name, content):
    write(RowStore(tmp_path / "rows", 4), range(4))
    path = tmp_path / "rows" / name
    path.write_bytes(content) if content is not None else path.unlink()
    store = RowStore(tmp_path / "rows", 4)
    assert store.missing() == [range(4)]
    write(store, range(4))
    assert RowStore(tmp_path / "rows", 4).rows()[3].tolist() == [3, 30]
    assert RowStore(tmp_path / "rows", 5).missing() == [range(0, 4), range(4, 5)]  # of other items


def test_a_disk_that_takes_nothing_more_leaves_what_it_has(tmp_path, monkeypatch):
    store = RowStore(tmp_path, 8)
    write(store, range(4))

    def full(*arguments):
        raise OSError("no space left on device")

    monkeypatch.setattr(row_store, "_write_at", full)
    with pytest.raises(OSError, match="no space"):
        write(store, range(4, 8))
    memory = store.in_memory()
    write(memory, range(4, 8))
    assert memory.rows()[:, 0].tolist() == list(range(8)) and memory.missing() == []
    assert RowStore(tmp_path, 8).missing() == [range(4, 8)]


def test_headers_are_those_of_numpy(tmp_path):
    values = np.arange(6, dtype="<f2").reshape(3, 2)
    (tmp_path / "x.npy").write_bytes(npy_header(values.shape, values.dtype, 128) + values.tobytes())
    assert np.array_equal(np.load(tmp_path / "x.npy"), values)


@pytest.mark.parametrize("name", ["rows.npy", "causes.npy", "hashes.npy"])
def test_a_block_with_a_flipped_bit_is_computed_again(tmp_path, name):
    store = RowStore(tmp_path / "rows", 10)
    for block in store.missing():
        write(store, block, {5: 1})
    assert RowStore(tmp_path / "rows", 10).missing() == []
    path = tmp_path / "rows" / name
    data = bytearray(path.read_bytes())
    data[row_store.HEADER + {"rows.npy": 4 * 8 + 3, "causes.npy": 4, "hashes.npy": 32 + 7}[name]] ^= 2
    path.write_bytes(data)
    hurt = RowStore(tmp_path / "rows", 10)
    assert hurt.missing() == [range(4, 8)]
    write(hurt, range(4, 8), {5: 1})
    again = RowStore(tmp_path / "rows", 10)
    assert again.missing() == [] and again.rows().tolist() == [[n, 10 * n] if n != 5 else [0, 0] for n in range(10)]
    (tmp_path / "rows" / "hashes.npy").unlink()  # as older versions wrote it
    assert RowStore(tmp_path / "rows", 10).missing() == []
