"""A server at a real port: many requests at once, events, `search` through it, and its end."""

import contextlib
import http.client
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest
import uvicorn

from dinorankclip.commands.entry import main
from dinorankclip.models.loaded import load_model
from dinorankclip.search import served as served_search
from dinorankclip.search.photo_search import stamp
from dinorankclip.serve.app import create_app
from dinorankclip.serve.collection import open_photos
from dinorankclip.serve.run_server import _ended_by_signals, bound_socket
from dinorankclip.serve.served_model import ServedModel
from dinorankclip.serve.state import ServedState
from dinorankclip.types import UserError
from tests.command_line import ROOT
from tests.models.model_making import photo, saved, small_model
from tests.serve.serving import TOKEN
from tests.systems import POSIX

AT_ONCE = 200


@contextlib.contextmanager
def running(state):
    """The port of a server in a thread."""
    bound = bound_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(state, False), log_level="error", ws="none", lifespan="off"))
    server.capture_signals = contextlib.nullcontext
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield bound.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(10)


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", path, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_two_hundred_requests_at_once_none_lost_none_wrong(state, client):
    kinds = [lambda n: "/api/search?" + urlencode({"q": f"thing {n % 40}", "model": "ab"[n % 2], "k": 5}),
             lambda n: "/api/duel?" + urlencode({"caption": n % 25, "k": 4}),
             lambda n: f"/api/image/{n % 13}/about",
             lambda n: f"/api/inside/{[1, 2, 3][n % 3]}/patch?patch={n % 16}"]  # fmt: skip
    paths = [kinds[n % 4](n // 4) for n in range(AT_ONCE)]
    expected = [client.get(path).json() for path in paths]
    barrier = threading.Barrier(AT_ONCE)

    def ask(path):
        barrier.wait(30)
        return get(port, path)

    with running(state) as port, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, paths))
    for path, (status, found), wanted in zip(paths, answers, expected):
        found.pop("seconds", None), wanted.pop("seconds", None)
        assert status == 200 and found == wanted, path


def test_more_uploads_than_memory_is_given_to_wait_for_each_other(state, place):
    data, many = (place / "pairs" / "05.jpg").read_bytes(), 3 * state.limits.uploads_at_once
    barrier = threading.Barrier(many)

    def ask(_):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(connection):
            barrier.wait(30)
            connection.request("POST", "/api/search/photo?k=3", data, {"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())["items"]

    with running(state) as port, ThreadPoolExecutor(many) as pool:
        answers = list(pool.map(ask, range(many)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][0] == 200 and answers[0][1][0]["index"] == 5


def test_events_are_sent_as_they_come(state):
    with running(state) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/api/runs/events", headers={"Authorization": f"Bearer {TOKEN}"})
            answer = connection.getresponse()
            assert answer.getheader("content-type").startswith("text/event-stream")
            lines = [answer.readline().decode() for _ in range(6)]
    assert lines[0] == lines[3] == "event: run\n"
    assert {json.loads(lines[at].removeprefix("data: "))["name"] for at in (1, 4)} == {"three", "zero"}


@pytest.fixture
def photos(tmp_path):
    (tmp_path / "photos" / "deep").mkdir(parents=True)
    for number in range(34):
        photo(number, 60, 48).save(tmp_path / "photos" / ("deep" if number % 2 else "") / f"{number:02d}.jpg")
    (tmp_path / "photos" / "bad.jpg").write_bytes(b"x")
    return tmp_path / "photos"


@pytest.fixture
def model(tmp_path):
    return saved(tmp_path / "model", small_model(seed=1))


def test_search_asks_the_server_and_finds_the_same_without_torch(photos, model, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["search", "model", "--images", "photos", "a red mug", "a boat"]
    words += ["--image-query", "photos/02.jpg", "--anyway"]
    served = ServedModel("a", load_model("model", "cpu"), stamp("model"))
    state = ServedState([served], open_photos(photos), token=TOKEN)
    state.prepare()
    assert not state.failed
    main([*words, "--html", "local.html"])
    local = capsys.readouterr()
    with running(state) as port:
        note = served_search.Note("127.0.0.1", port, TOKEN, state.collection.photos_digest)
        path = served_search.note_path(photos, served.stamp)
        served_search.leave_note(path, note)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        main([*words, "--html", "served.html"])
        through = capsys.readouterr()
        assert f"answered by the server at http://127.0.0.1:{port}" in through.err and "answered" not in local.err
        assert rounded(through.out.replace("served.html", "local.html")) == rounded(local.out)
        assert "bad.jpg" in through.err and "34 photos in" in (tmp_path / "served.html").read_text()
        program = "import sys; from dinorankclip.commands.entry import main; main(sys.argv[1:]); "
        program += "assert not {'torch', 'open_clip', 'fastapi'} & set(sys.modules), 'heavy'"
        command = [sys.executable, "-c", program, *words]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
        assert done.returncode == 0 and "answered by the server" in done.stderr, done.stderr
        photo(99, 60, 48).save(photos / "new.jpg")  # the server does not know it
        assert served_search.find_server("model", photos, ["x"], 20) is None
        (photos / "new.jpg").unlink()
        assert served_search.find_server("model", photos, ["x"], 20) is not None
        assert served_search.find_server("model", photos, ["x"], 101) is None  # more than it answers
    assert served_search.find_server("model", photos, ["x"], 20) is None and not path.exists()  # nobody answers


def rounded(text):
    """Cosines to two digits: the batch of an embedding may change its last digit."""
    return re.sub(r"(\d\.\d\d)\d", r"\1", text)


@POSIX
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_ask_the_server_to_end(state, how):
    class Server:
        should_exit = force_exit = False

    server, stopping = Server(), threading.Event()
    before = signal.getsignal(how)
    with _ended_by_signals(server, SimpleNamespace(stopping=stopping)):
        os.kill(os.getpid(), how)
        assert stopping.wait(5) and server.should_exit and not server.force_exit
        os.kill(os.getpid(), how)
        time.sleep(0.01)
        assert server.force_exit
    assert signal.getsignal(how) is before


def test_a_signal_ends_the_server_gracefully(photos, model, tmp_path):
    command = [sys.executable, "-m", "dinorankclip", "serve", "model", "--images", "photos", "--port", "0"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as server:
        link = server.stdout.readline()
        until = time.monotonic() + 60
        while not (notes := list((photos / ".dinorankclip").glob("serving-*.json"))):
            assert server.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        token, port = json.loads(notes[0].read_text())["token"], int(re.search(r":(\d+)/", link)[1])
        assert link.strip() == f"serving: http://127.0.0.1:{port}/?token={token}" and len(token) >= 32
        stream = http.client.HTTPConnection("127.0.0.1", port, timeout=10)  # an open stream must not hold it up
        stream.request("GET", "/api/runs/events", headers={"Authorization": f"Bearer {token}"})
        assert stream.getresponse().status == 200
        server.send_signal(signal.SIGTERM)
        out, err = server.communicate(timeout=60)
        stream.close()
    assert server.returncode == 0 and out.endswith("stopped\n") and "Traceback" not in err
    assert not list((photos / ".dinorankclip").glob("serving-*.json"))


def test_a_port_that_is_taken_is_named():
    taken = bound_socket("127.0.0.1", 0)
    with contextlib.closing(taken), pytest.raises(UserError, match=r"--port 0 takes any free port"):
        bound_socket("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(("words", "message"), [
    (["serve", "nowhere", "--images", "photos"], "holds no model"),
    (["serve", "model", "--images", "nothing"], "does not exist"),
    (["serve", "model", "--images", "photos", "--host", "0.0.0.0"], "token of your own"),
    (["explore", "model"], "--data with pairs"),
    (["explore", "model", "model", "model", "--images", "photos"], "one model or two"),
    (["explore", "model", "--images", "photos", "--split", "val"], "no parts"),
    (["explore", "model", "--data", "nothing"], "nothing"),
])  # fmt: skip
def test_mistakes_of_the_command_line_are_one_sentence(photos, model, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DINORANKCLIP_TOKEN", raising=False)
    with pytest.raises(SystemExit) as ended:
        main(words)
    error = capsys.readouterr().err
    assert ended.value.code == 2 and message in error and "Traceback" not in error


def test_a_missing_extra_is_named(photos, model, tmp_path, monkeypatch, capsys):
    import importlib.util

    monkeypatch.chdir(tmp_path)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "uvicorn" else found(name, *more)
    )
    with pytest.raises(SystemExit):
        main(["serve", "model", "--images", "photos"])
    assert "pip install 'dinorankclip[serve]'" in capsys.readouterr().err
