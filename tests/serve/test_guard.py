"""Who is answered: token, host, origin; and what every answer carries."""

import pytest
from fastapi.testclient import TestClient

from dinorankclip.serve.app import create_app
from dinorankclip.serve.guard import POLICY, Guard
from dinorankclip.serve.run_server import checked_token
from dinorankclip.types import UserError
from tests.serve.serving import TOKEN, client_of, served

PATHS = ["/api/health", "/api/models", "/api/image/0", "/api/openapi.json", "/", "/nowhere"]


@pytest.fixture
def stranger(state):
    """A client without the token."""
    return TestClient(create_app(state, False), "http://127.0.0.1:8000", follow_redirects=False)


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_answered_without_the_token(stranger, path):
    answer = stranger.get(path)
    assert answer.status_code == 401 and "token" in answer.text and TOKEN not in answer.text
    if path.startswith("/api"):
        assert list(answer.json()) == ["message"]
    else:
        assert answer.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize("wrong", ["", "wrong", TOKEN[:-1], TOKEN + "x", "ü" * 20])
def test_a_wrong_token_is_refused_wherever_it_is_given(stranger, wrong):
    assert stranger.get("/api/health", params={"token": wrong}).status_code == 401
    header = {"Authorization": f"Bearer {wrong}".encode()}
    assert stranger.get("/api/health", headers=header).status_code == 401
    assert stranger.get("/api/health", headers={"Cookie": f"dinorankclip_0={wrong}".encode()}).status_code == 401


def test_the_link_becomes_a_cookie_and_an_address_without_the_token(stranger):
    first = stranger.get("/api/search", params={"q": "a dog & cat", "token": TOKEN, "k": "2"})
    assert first.status_code == 303 and first.headers["location"] == "/api/search?q=a+dog+%26+cat&k=2"
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and TOKEN in cookie
    second = stranger.get(first.headers["location"])  # the client sends the cookie
    assert second.status_code == 200 and len(second.json()["items"]) == 2


def test_the_redirect_stays_on_this_machine(stranger):
    for path in ("//evil.example/x", "/\\evil.example"):
        answer = stranger.get(f"http://127.0.0.1:8000{path}?token={TOKEN}")
        assert answer.status_code == 303 and answer.headers["location"].startswith("/evil.example")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "192.168.0.9", "[::1"])
def test_a_foreign_host_name_is_refused_even_with_the_token(client, host):
    answer = client.get("/api/health", headers={"Host": host})
    assert answer.status_code == 421 and "host name" in answer.json()["message"]


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "[::1]:8000"])
def test_loopback_names_are_answered(client, host):
    assert client.get("/api/health", headers={"Host": host}).status_code == 200


def test_a_server_for_other_machines_takes_addresses_and_its_own_name_only(state):
    guard = Guard(None, "t" * 16, "c", "0.0.0.0", 10)  # type: ignore[arg-type]
    assert guard._is_here("192.168.0.9:8000") and guard._is_here("localhost") and not guard._is_here("evil.example")


def test_a_page_of_another_origin_cannot_change_anything(client):
    asked = {"keys": []}
    other = client.post("/api/data/export", json=asked, headers={"Origin": "http://evil.example"})
    assert other.status_code == 403
    own = client.post("/api/data/export", json=asked, headers={"Origin": "http://127.0.0.1:8000"})
    assert own.status_code == 200


@pytest.mark.parametrize("path", ["/api/set", "/api/image/1", "/api/nowhere", "/nowhere", "/api/search"])
def test_every_answer_has_the_policy_and_no_sniffing(client, path):
    headers = client.get(path).headers
    assert headers["content-security-policy"] == POLICY and "default-src 'none'" in POLICY and "unsafe" not in POLICY
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


def test_errors_are_sentences_and_never_traces(client):
    for path, status in {"/api/nowhere": 404, "/api/search?q=x&k=many": 422, "/api/search": 422}.items():
        answer = client.get(path)
        assert answer.status_code == status and list(answer.json()) == ["message"]
        assert "Traceback" not in answer.text and ".py" not in answer.text
    page = client.get("/<script>alert(1)</script>")
    assert (
        page.status_code == 404 and "<script>" not in page.text and page.headers["content-type"].startswith("text/html")
    )
    assert client.delete("/api/set").status_code == 405


def test_a_mistake_of_ours_is_a_sentence_too(place, capsys):
    broken = served([place / "runs" / "zero"], place / "pairs", place / "store")
    app = create_app(broken, False)
    app.add_api_route("/api/broken", lambda: 1 / 0)
    asking = TestClient(
        app, "http://127.0.0.1:8000", headers={"Authorization": f"Bearer {TOKEN}"}, raise_server_exceptions=False
    )
    answer = asking.get("/api/broken")
    assert answer.status_code == 500 and "ZeroDivision" not in answer.text and "mistake" in answer.json()["message"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_query_string_is_bounded(client):
    assert client.get("/api/search", params={"q": "x" * 40_000}).status_code == 414


def test_other_machines_need_a_token_of_the_users_own(monkeypatch):
    monkeypatch.delenv("DINORANKCLIP_TOKEN", raising=False)
    assert checked_token("127.0.0.1", None) is None
    with pytest.raises(UserError, match="token of your own"):
        checked_token("0.0.0.0", None)
    with pytest.raises(UserError, match="at least 16"):
        checked_token("0.0.0.0", "short")
    with pytest.raises(UserError, match="letters, digits"):
        checked_token("127.0.0.1", "a token with spaces")
    monkeypatch.setenv("DINORANKCLIP_TOKEN", "0123456789abcdef")
    assert checked_token("0.0.0.0", None) == "0123456789abcdef"


def test_without_pages_the_first_page_describes_the_api(client):
    routes = client.get("/").json()["routes"]
    assert "GET /api/search" in routes and "POST /api/lists" in routes
    paths = client.get("/api/openapi.json").json()["paths"]
    assert {"/api/duel/summary", "/api/inside/{image}/patch", "/api/runs/events", "/api/data/{name}"} <= set(paths)


def test_an_unprepared_server_says_how_far_it_is(place):
    early = served([place / "runs" / "zero"], place / "pairs", place / "store")
    asking = client_of(early)
    assert asking.get("/api/health").json()["ready"] is False
    early.progress = {"what": "embedding images", "done": 3, "total": 13}
    answer = asking.get("/api/search", params={"q": "x"})
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert answer.json()["message"].startswith("embedding images: 3 of 13")
    early.failed = "the disk is away"
    assert asking.get("/api/duel/summary").status_code == 409  # one model is no duel, whatever the disk does
    assert asking.get("/api/plane").json() == {"message": "the disk is away"}
    assert asking.get("/api/health").json()["status"] == "failed"
