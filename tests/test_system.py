"""Systems that lack what Linux has: each is simulated by its absence."""

import ast
import builtins
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from dinorankclip import io, system
from dinorankclip.checked_files import bytes_at, open_regular
from dinorankclip.data import loader
from dinorankclip.train.clock import core_time
from tests.systems import POSIX


@pytest.fixture
def windows(monkeypatch):
    """Hide what Windows has not: modules and functions that this package would use."""
    found = builtins.__import__

    def imports(name, *more):
        if name in ("resource", "fcntl"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return found(name, *more)

    monkeypatch.setattr(builtins, "__import__", imports)
    for module, name in ((os, "sched_getaffinity"), (os, "pread"), (os, "sysconf"), (signal, "pthread_sigmask")):
        monkeypatch.delattr(module, name, raising=False)
    monkeypatch.setattr(sys, "platform", "win32")


def test_cores_processes_and_limits_without_posix(windows, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert system.usable_cores() == 6 and system.start_method() is None
    assert system.peak_memory() is None and system.most_open_files() is None
    system.allow_open_files(99)
    loader._demand_open_files(1000)  # no limit is known, so none is refused
    with system.signals_held_back(signal.SIGINT):
        pass


def test_core_seconds_without_posix_are_those_of_this_process(windows):
    before = core_time()
    sum(range(200_000))
    assert core_time() > before > 0 and system.core_seconds([os.getpid()]) == pytest.approx(core_time(), abs=0.5)


@POSIX
def test_core_seconds_count_children():
    assert system.core_seconds([]) >= 0 and system.core_seconds([-1]) >= 0
    if sys.platform == "linux":
        assert system.core_seconds([os.getpid()]) > system.core_seconds([])


def test_a_process_is_never_asked_where_asking_would_end_it(monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *words: pytest.fail("os.kill ends processes on Windows"))
    monkeypatch.setattr(os, "name", "nt")
    assert system.lives(os.getpid()) and system.lives(999_999)


@POSIX
def test_processes_that_live_and_that_have_ended():
    assert system.lives(os.getpid()) and not system.lives(2**22 + 1)


@POSIX
def test_signals_wait_until_the_block_ends():
    """Also a signal of the process, which a thread of a numeric library may take: such threads hold none back."""
    received, ends = [], threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    before = signal.signal(signal.SIGTERM, lambda *_: received.append(1))
    try:
        with system.signals_held_back(signal.SIGTERM):
            signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
            assert received == []
        assert received == [1]
        with system.signals_held_back(signal.SIGTERM):
            signal.pthread_kill(thread.ident, signal.SIGTERM)
            for _ in range(1000):  # a handler would run between two of these
                time.sleep(0)
            assert received == [1]
        assert received == [1, 1]
        with pytest.raises(ValueError), system.signals_held_back(signal.SIGTERM):
            raise ValueError
        signal.raise_signal(signal.SIGTERM)
        assert received == [1, 1, 1]
    finally:
        signal.signal(signal.SIGTERM, before)
        ends.set()
        thread.join()


def test_bytes_at_a_position_by_many_threads(windows, tmp_path):
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(number.to_bytes(4, "little") for number in range(5000)))
    handle, wrong = open_regular(path), []

    def read(offset):
        for number in range(offset, 5000, 4):
            if bytes_at(handle, 4, 4 * number) != number.to_bytes(4, "little"):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and bytes_at(handle, 9, 4 * 5000 - 3) == (4999).to_bytes(4, "little")[1:]
    os.close(handle)


@pytest.mark.parametrize("hard_links", [True, False])
def test_a_folder_gets_a_second_name_where_links_are_not_allowed(tmp_path, monkeypatch, hard_links):
    def refused(*words, **more):
        raise OSError(1314, "A required privilege is not held by the client")

    monkeypatch.setattr("pathlib.Path.symlink_to", refused)
    if not hard_links:
        monkeypatch.setattr(os, "link", refused)
    for name in ("step-1", "step-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name, encoding="utf-8")
        io.point(tmp_path / "last", name)
        assert (tmp_path / "last" / "weights").read_text(encoding="utf-8") == name
    assert {path.name for path in tmp_path.iterdir()} == {"last", "step-1", "step-2"}
    same = os.path.samefile(tmp_path / "last" / "weights", tmp_path / "step-2" / "weights")
    assert same == hard_links
    with pytest.raises(OSError):
        io.point(tmp_path / "last", "nowhere")


def test_folders_are_written_and_exchanged_without_posix(windows, tmp_path, monkeypatch):
    def no_such_library(name):
        raise TypeError("argument of type 'NoneType' is not iterable")  # what Windows says to CDLL(None)

    monkeypatch.setattr("ctypes.CDLL", no_such_library)
    for text in ("first", "second"):
        with io.whole_folder(tmp_path / "out", replace=True) as aside:
            (aside / "file").write_text(text, encoding="utf-8")
    assert (tmp_path / "out" / "file").read_text(encoding="utf-8") == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_flushing_without_posix(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(os, "open", lambda *words, **more: pytest.fail("Windows opens no folder"))
    monkeypatch.setattr(io.os, "name", "nt")
    flushed = []
    monkeypatch.setattr(io.os, "fsync", flushed.append)
    io.flush(tmp_path / "file")
    io.flush(str(tmp_path))
    assert len(flushed) == 1  # the file alone


def test_no_other_file_looks_at_the_platform():
    """Modules and functions that only some systems have are used in a few files alone."""
    root = Path(__file__).parents[1]
    special = re.compile(
        r"^\s*(?:import|from) (?:fcntl|resource|pwd|grp|termios)\b|os\.(?:fork|pread|pwrite|sched_|getuid|mkfifo|uname)"
        r"|pthread_|SIGHUP|SIGUSR|SIGALRM|sys\.platform|symlink_to|\"fork\"",
        re.MULTILINE,
    )
    allowed = {"system.py", "io.py", "checked_files.py", "device.py", "machine_findings.py", "tar_shards.py"}
    files = [*(root / "dinorankclip").rglob("*.py"), *(root / "dinorankclip_studies").rglob("*.py")]
    found = {path.name: special.findall(path.read_text(encoding="utf-8")) for path in files if path.name not in allowed}
    found.pop("household_and_instruments.py")  # draws a fork
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_text_is_read_and_written_in_utf_8():
    """Without an encoding Python takes that of the system, which is another one on Windows."""
    root = Path(__file__).parents[1]
    wrong = []
    for path in [*(root / "dinorankclip").rglob("*.py"), *(root / "dinorankclip_studies").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and _is_text(node)
                and not {"encoding", None} & {k.arg for k in node.keywords}
            ):
                wrong.append(f"{path.relative_to(root)}:{node.lineno}")
    assert wrong == []


def _is_text(call: ast.Call) -> bool:
    """Return whether a call is Path.read_text, Path.write_text, or an `open` in a mode without b."""
    words = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    if isinstance(call.func, ast.Name):
        return call.func.id == "open" and not any("b" in mode for mode in modes)
    if not isinstance(call.func, ast.Attribute):
        return False
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if call.func.attr in ("read_text", "write_text"):
        return owner != "io"  # ours writes UTF-8
    return call.func.attr == "open" and bool(set(modes) & {"r", "w", "a", "r+", "w+"})
