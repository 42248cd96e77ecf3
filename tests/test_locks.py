"""Locks between processes: one at a time, and no file of theirs stays."""

import threading

from dinorankclip.io import if_free, one_at_a_time


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
