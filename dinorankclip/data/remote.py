"""Reads shards on other machines where they lie, by the URLs of fsspec: s3://, gs://, https://, memory:// and others.

A `RemoteShard` knows the size of an object and the mark by which its store tells one version from another (an ETag, a
checksum or a time). tar_shards.py makes its table of contents once and reads samples by ranges of bytes, so the exact
position of the loader holds. Three things differ from a local file:

* A request that fails, is slow or ends too early is sent again, after waits that double, up to `TRIES` times.
  After that a `UserError` ends the command. No sample is replaced because of the network, so a run that goes on sees
  the same batches.
* Each process looks at size and mark again every `LOOK_AGAIN` seconds, and whenever a range comes too short. A changed
  object ends the command: the same command makes a new table of contents.
* Image and caption of a pair are neighbours in a tar: `held` reads both by one request.

Credentials and endpoints are those of fsspec and the packages behind it (environment variables, ~/.aws, FSSPEC_S3_…).
Nothing here is reached unless the user names a URL.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

from dinorankclip.data.paths import is_url, shown_url
from dinorankclip.extras import MissingPackage, install_line, naming_extras
from dinorankclip.types import UserError, first_line

log = logging.getLogger(__name__)

TRIES = 8
FIRST_WAIT, LONGEST_WAIT = 0.25, 8.0  # seconds; eight slow requests and their waits end before `reading.patience`
TIMEOUT = 30.0  # seconds for one request
LOOK_AGAIN = 900.0
WINDOW = 1 << 22  # bytes that are read at once while a shard is indexed
AT_ONCE = 16  # requests of a process under way
MARKS = ("ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "generation", "LastModified", "Last-Modified",
         "last_modified", "mtime", "created")  # fmt: skip
_BUSY = (408, 409, 425, 429)  # states below 500 that may pass
_PACKAGES = {"gs": "gcsfs", "gcs": "gcsfs", "abfs": "adlfs", "az": "adlfs"}
_LOCAL, _WITH_HOST = ("file", "local"), ("sftp", "ssh", "ftp", "hdfs", "webhdfs", "smb")
_draws = random.SystemRandom()  # waits alone depend on it
_held = threading.local()
Item = TypeVar("Item")
Result = TypeVar("Result")


class RemoteShard:
    """Names an object by its URL. Offers what tar_shards.py asks of a path: name, stem, parent, and its bytes."""

    def __init__(self, url: str) -> None:
        self.url, self._seen = url, 0.0
        self._state: tuple[int, str] | None = None
        self.parent, _, self.name = shown_url(url).rpartition("/")
        self.stem = self.name.rpartition(".")[0] or self.name

    def __str__(self) -> str:
        return shown_url(self.url)

    def look(self) -> tuple[int, str]:
        """Ask for size and mark, once."""
        if self._state is None:
            self._state, self._seen = self._asked(), time.monotonic()
        return self._state

    def _asked(self) -> tuple[int, str]:
        info = _request(self, lambda files, path: files.info(path, **_bounded(files)))
        if not isinstance(size := info.get("size"), int):
            raise UserError(f"{self} has no known size, so it cannot be read in any order: stream it by pipe:")
        return size, next((f"{name} {info[name]}" for name in MARKS if info.get(name)), "")

    def read(self, at: int, size: int) -> bytes:
        """Return `size` bytes at a position."""
        piece = getattr(_held, "piece", None)
        if piece is not None and piece[0] is self and piece[1] <= at and at + size <= piece[1] + len(piece[2]):
            return piece[2][at - piece[1] : at - piece[1] + size]
        known = self.look()
        if time.monotonic() - self._seen > LOOK_AGAIN:
            self._demand_same(known)
        if not size:
            return b""

        def fetch(files: Any, path: str) -> bytes:
            data = files.cat_file(path, start=at, end=at + size, **_bounded(files))
            if len(data) > size:
                raise UserError(f"{self} cannot be read in ranges: its server sends more than it is asked for")
            if len(data) < size:
                self._demand_same(known)
                raise OSError(f"{len(data)} of {size} bytes came")
            return data

        return _request(self, fetch)

    def _demand_same(self, known: tuple[int, str]) -> None:
        if (now := self._asked()) != known:
            raise UserError(
                f"{self} has changed while it was read ({known[0]} bytes, {known[1]} → {now[0]} bytes, {now[1]}): "
                "start the command again. A run goes on only if its pairs are the same"
            )
        self._seen = time.monotonic()

    @contextlib.contextmanager
    def held(self, start: int, stop: int) -> Iterator[None]:
        """Read a range at once; this thread's reads inside it need no request during the block."""
        _held.piece = self, start, self.read(start, stop - start)
        try:
            yield
        finally:
            _held.piece = None

    def open(self) -> io.BufferedReader:
        """Return a file to walk through, which reads ahead by `WINDOW`."""
        return io.BufferedReader(_Walk(self), WINDOW)


class _Walk(io.RawIOBase):
    """Presents an object as an unbuffered file."""

    def __init__(self, shard: RemoteShard) -> None:
        self._shard, self._at, self._end = shard, 0, shard.look()[0]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        count = max(0, min(len(buffer), self._end - self._at))
        buffer[:count] = self._shard.read(self._at, count)
        self._at += count
        return count


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield function(item) for each item, in order, with several requests under way."""
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * AT_ONCE:  # millions of items do not wait at once
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:  # after an error nobody waits for requests that have not begun
            for future in waiting:
                future.cancel()


def matching(pattern: str) -> list[str]:
    """Return the URLs that a URL with * names, sorted; a URL without is returned as it is."""
    if "*" not in pattern:
        return [pattern]
    names = _request(pattern, lambda files, path: files.glob(path))
    return sorted(_as_url(pattern, name) for name in names)


def listed(folder: str) -> tuple[list[str], list[str]]:
    """Return the URLs of folders and of files in a folder."""
    entries = _request(folder, lambda files, path: files.ls(path.rstrip("/") + "/", detail=True))
    urls: dict[bool, list[str]] = {True: [], False: []}
    for entry in entries:
        urls[entry["type"] == "directory"].append(_as_url(folder, entry["name"].rstrip("/")))
    return urls[True], urls[False]


def _as_url(like: str, name: str) -> str:
    """Return the URL of a name that a store gave, in the store of the URL `like`. Names lack the host, if there is
    one."""
    if is_url(name):
        return name
    protocol, _, rest = like.partition("://")
    host, path = rest.partition("/")[0], name.removeprefix("/")
    if protocol in _LOCAL:
        return f"{protocol}:///{path}"
    if protocol in _WITH_HOST:
        return f"{protocol}://{host}/{path}"
    if "@" in host:  # container@account: names begin with the container
        return f"{protocol}://{host}/{path.partition('/')[2]}"
    return f"{protocol}://{path}"


def _bounded(files: Any) -> dict[str, float]:
    return {"timeout": TIMEOUT} if getattr(files, "async_impl", False) else {}


@lru_cache(maxsize=64)
def _files_of(start: str, process: int) -> Any:
    """Return fsspec's access to a store; each forked process (`process`) has its own connections."""
    protocol = start.partition("://")[0]
    with naming_extras(f"reading {protocol}:// shards", "remote"):
        import fsspec
    try:
        return fsspec.core.url_to_fs(start, use_listings_cache=False)[0]
    except ImportError as error:
        package = _PACKAGES.get(protocol, f"{protocol}fs")
        line = install_line("remote") if protocol.startswith("http") else f"pip install {package}"
        raise MissingPackage(f"{protocol}:// shards need another package ({_said(error)}): {line}") from error
    except ValueError as error:
        raise UserError(f"{shown_url(start)} cannot be opened: {_said(error)}") from None


def _request(what: RemoteShard | str, ask: Callable[[Any, str], Result]) -> Result:
    """Return ask(file system, path); try again after errors that may pass."""
    url = what.url if isinstance(what, RemoteShard) else what
    files = _files_of(re.sub(r"(://[^/]*/?).*", r"\1", url), os.getpid())
    path = files._strip_protocol(url)
    wait = FIRST_WAIT
    for attempt in range(1, TRIES + 1):
        try:
            return ask(files, path)
        except (UserError, KeyboardInterrupt):
            raise
        except Exception as error:  # the packages behind fsspec raise errors of their own kinds
            if (final := _final(error)) is not None:
                raise UserError(f"{shown_url(url)} {final}") from error
            said = f"{type(error).__name__}: {_said(error)}"
            if attempt == TRIES:
                raise UserError(
                    f"{shown_url(url)} cannot be read: {TRIES} requests failed, the last with {said}. Is the network "
                    "or the store away? The same command goes on later"
                ) from error
            log.log(
                logging.INFO if attempt < TRIES // 2 else logging.WARNING, "%s: %s; trying again", shown_url(url), said
            )
        time.sleep(wait * _draws.uniform(0.5, 1.0))
        wait = min(2 * wait, LONGEST_WAIT)
    raise AssertionError("the last attempt returns or raises")


def _final(error: Exception) -> str | None:
    """Say why it makes no sense to try again; None for an error that may pass."""
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ is not None else error
    state = getattr(cause, "status", None)
    refused = state in (401, 403) or isinstance(cause, PermissionError) or "Credentials" in type(cause).__name__
    if refused:
        return (
            f"may not be read ({_said(cause)}): give credentials where its package looks for them, for S3 "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; for public data of S3 set FSSPEC_S3_ANON=true"
        )
    # s3fs raises FileNotFoundError for what S3 says is missing; other packages also for a network that is away.
    missing = isinstance(error, FileNotFoundError) and type(cause).__name__ == "ClientError"
    if missing or state in (404, 410) or isinstance(cause, FileNotFoundError):
        return "is not there: is the name right?"
    if isinstance(cause, NotImplementedError | TypeError):
        return f"cannot be read: {_said(cause)}"
    if isinstance(state, int) and 400 <= state < 500 and state not in _BUSY:
        return f"cannot be read: its server answers with {state} ({_said(cause)})"
    return None


def _said(error: BaseException) -> str:
    """Return the first line of an error without what may be secret in its URLs."""
    return re.sub(r"\w[\w+.-]*://\S+", lambda found: shown_url(found.group()), first_line(error))
