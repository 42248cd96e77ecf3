"""The page of a search: self-contained, everything from outside escaped."""

import html.parser
import os

import pytest

from dinorankclip.report.search_page import write_page
from dinorankclip.search.photo_search import Found, Hit
from tests.models.model_making import photo

ODD = ["a b.jpg", "ü 日本.jpg", "quo\"te'.jpg", "<script>alert(1)<¤script>.jpg", "&amp;.jpg", "line\nbreak.jpg"]


class Reader(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.words = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture
def photos(tmp_path):
    names = [name.replace("¤", "\u2215") for name in ODD] + [os.fsdecode(b"\xff.jpg")]
    for number, name in enumerate(names):
        photo(number, 90 + 200 * number, 120).save(tmp_path / name)
    return tmp_path, names


def test_everything_from_outside_is_escaped_and_nothing_is_fetched(photos):
    folder, names = photos
    query = '<img src=x onerror="alert(1)"> & "more"'
    hits = [Hit(folder / name, 0.5 - 0.1 * number) for number, name in enumerate(names)]
    write_page(
        folder / "out" / "page.html", [Found(query, hits), Found(folder / names[3], hits[:1])], folder, "m<b>", 7
    )
    text = (folder / "out" / "page.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert {tag for tag, _ in page.tags} == {
        *("html", "meta", "title", "style", "header", "section", "h2", "ol", "li", "a", "img", "div", "b", "span")
    }
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 9 and all(image["src"].startswith("data:image/jpeg;base64,") for image in images)
    assert all(set(image) == {"src", "alt"} for image in images)
    assert [image["alt"] for image in images[:6]] == names[:6]
    assert all(a["href"].startswith("file:///") for tag, a in page.tags if tag == "a")
    assert f"“{query}”" in page.words and "7 photos in" in "".join(page.words)
    assert [word for word in page.words if word in ("0.500", "0.400", "-0.100")] == [
        "0.500",
        "0.400",
        "-0.100",
        "0.500",
    ]
    assert "http" not in text and "<script" not in text


def test_a_photo_that_is_gone_is_said_to_be(photos):
    folder, _ = photos
    write_page(folder / "page.html", [Found("mug", [Hit(folder / "gone.jpg", 0.3)])], folder, "m", 1)
    page = Reader((folder / "page.html").read_text(encoding="utf-8"))
    assert "missing-image" in page.words and not any(tag == "img" for tag, _ in page.tags)
