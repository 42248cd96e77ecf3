"""A store of objects on 127.0.0.1 for tests: plain HTTP with ranges, and as much of S3 as s3fs asks for.

Of the requests for objects, a share fails: with 503, with a body that ends too early, with a closed connection, or with
an answer that comes late. Which ones is drawn from a seed, so that a share of 0.05 is one.
"""

import hashlib
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

FAULTS = ("503", "short", "closed", "slow")


class StandIn(ThreadingHTTPServer):
    """Serves a folder: http://127.0.0.1:PORT/BUCKET/KEY."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, failing=0.0, seed=0, latency=0.0):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.failing, self.latency = folder, failing, latency
        self.draws, self.lock = random.Random(seed), threading.Lock()
        self.requests, self.faults, self.ranges = 0, 0, []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def handle_error(self, request, client_address):
        """Say nothing of clients that go away."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def fault(self):
        with self.lock:
            self.requests += 1
            if self.draws.random() >= self.failing:
                return None
            self.faults += 1
            return self.draws.choice(FAULTS)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_HEAD(self):
        self.do_GET(body=False)

    def do_GET(self, body=True):
        parts = urlsplit(self.path)
        path = self.server.folder / unquote(parts.path).strip("/")
        fault = self.server.fault()
        time.sleep(self.server.latency + (0.2 if fault == "slow" else 0))
        if fault == "503":
            return self.answer(503, b"slow down" if body else b"", {}, 9)
        if fault == "closed":
            self.close_connection = True
            return None
        query = {name: values[0] for name, values in parse_qs(parts.query, keep_blank_values=True).items()}
        if path.is_dir():
            text = _s3_list(path, query) if "list-type" in query else _page(path, self.path.rstrip("/"))
            return self.answer(200, text.encode() if body else b"", {}, len(text.encode()))
        if path.name == "forbidden.tar":
            return self.answer(403, b"", {}, 0)
        if not path.is_file():
            return self.answer(404, b"", {}, 0)
        data = path.read_bytes()
        about = {"ETag": _tag(data), "Last-Modified": "Wed, 18 Nov 2026 00:00:00 GMT", "Accept-Ranges": "bytes"}
        status = 200
        if (asked := self.headers.get("Range", "")).startswith("bytes="):
            first, _, last = asked[6:].partition("-")
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
            about["Content-Range"], status = f"bytes {start}-{stop - 1}/{len(data)}", 206
            data = data[start:stop]
            with self.server.lock:
                self.server.ranges.append((path.name, start, stop))
        shown = data if body else b""
        if fault == "short" and shown:
            self.close_connection = True
            shown = shown[: len(shown) // 2]
        return self.answer(status, shown, about, len(data))

    def answer(self, status, body, headers, length):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        self.wfile.write(body)


def _tag(data):
    return f'"{hashlib.md5(data).hexdigest()}"'


def _page(folder, where):
    links = (f'<a href="{where}/{file.name}{"/" * file.is_dir()}">x</a>' for file in sorted(folder.iterdir()))
    return f"<html>{''.join(links)}</html>"


def _s3_list(bucket, query):
    """ListObjectsV2 of a bucket."""
    prefix, mark = query.get("prefix", ""), query.get("delimiter", "")
    found, folders = [], set()
    for file in sorted(path for path in bucket.rglob("*") if path.is_file()):
        key = file.relative_to(bucket).as_posix()
        if key.startswith(prefix):
            rest = key[len(prefix) :]
            if mark and mark in rest:
                folders.add(prefix + rest.partition(mark)[0] + mark)
            else:
                found.append((key, file.read_bytes()))
    objects = "".join(
        f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-18T00:00:00.000Z</LastModified>"
        f"<ETag>{escape(_tag(data))}</ETag><Size>{len(data)}</Size></Contents>"
        for key, data in found
    )
    shared = "".join(f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>" for name in sorted(folders))
    return (
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{bucket.name}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(found) + len(folders)}</KeyCount>"
        f"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>{objects}{shared}</ListBucketResult>"
    )
