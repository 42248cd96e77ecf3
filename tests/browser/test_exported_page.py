"""`export --to web`: the pair of graphs answers in Chromium, with the embeddings of this package.

Needs npm's onnxruntime-web: the folder in ORT_WEB, or node_modules of the current folder. Skipped without it.
"""

import http.server
import json
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import torch

from dinorankclip.models.export_model import write_export
from dinorankclip.models.export_web import demand_runtime
from dinorankclip.models.loaded import load_model
from dinorankclip.types import UserError
from tests.models.model_making import photo, saved, small_model

pytestmark = pytest.mark.browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def runtime():
    folder = Path(os.environ.get("ORT_WEB", "."))
    try:
        demand_runtime(folder)
    except UserError:
        pytest.skip("needs onnxruntime-web: npm install onnxruntime-web, and ORT_WEB=FOLDER")
    return folder


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_page_answers_with_this_packages_embeddings(chromium, runtime, tmp_path, precision):
    pytest.importorskip("onnxscript")
    source = saved(tmp_path / "plain", small_model(seed=2))
    (tmp_path / "photos").mkdir()
    for number in range(4):
        photo(number).save(tmp_path / "photos" / f"{number}.png")
    options = {"licence": "mit", "runtime": runtime, "images": tmp_path / "photos", "precision": precision}
    write_export(str(source), tmp_path / "page", ["web"], **options)
    handler = partial(Quiet, directory=str(tmp_path / "page"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    model, page, faults = load_model(source), chromium.new_page(), []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
    page.on(
        "request",
        lambda asked: (
            None if "127.0.0.1" in asked.url or asked.url[:5] in ("blob:", "data:") else faults.append(asked.url)
        ),
    )
    least = 0.99999 if precision == "fp32" else 0.99
    try:
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("#words:enabled", timeout=60_000)
        words = "Zwei Straßencafés & “a red mug”"
        page.fill("#words", words)
        page.click("button")
        page.wait_for_selector("#hits li", timeout=30_000)
        row = torch.tensor(page.evaluate("async (words) => Array.from(await photoSearch.embedWords(words))", words))
        assert float(row @ model.encode_text([words])[0]) > least
        expected = [
            f"{place}.png" for place in (model.encode_image(shown(model)) @ row).argsort(descending=True).tolist()
        ]
        assert [text.split()[1] for text in page.locator("#hits li p").all_inner_texts()] == expected
        photo(7).save(tmp_path / "new.png")
        page.set_input_files("#files", tmp_path / "new.png")
        page.wait_for_selector('#state:has-text("5 photos")', timeout=30_000)
        row = torch.tensor(page.evaluate("Array.from(photoSearch.photos.at(-1).row)"))
        assert float(row @ model.encode_image(model.preprocess(photo(7))[None])[0]) > min(least, 0.9999)
    finally:
        page.close()
        server.shutdown()
    assert faults == [], json.dumps(faults)


def shown(model):
    return torch.stack([model.preprocess(photo(number)) for number in range(4)])
