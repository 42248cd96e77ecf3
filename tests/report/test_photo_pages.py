"""Pages of photos: self-contained, everything from outside escaped."""

import html.parser
import os

import pytest

from dinorankclip.data.inspect import ShownPair
from dinorankclip.report.photo_pages import write_contact_sheet, write_search_page
from dinorankclip.search.photo_search import Answer, Hit
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
    write_search_page(
        folder / "out" / "page.html", [Answer(query, hits), Answer(folder / names[3], hits[:1])], folder, "m<b>", 7
    )
    text = (folder / "out" / "page.html").read_text(encoding="utf-8")
    page = Reader(text)
    assert {tag for tag, _ in page.tags} == {
        *(
            "html",
            "head",
            "body",
            "meta",
            "title",
            "style",
            "header",
            "section",
            "h2",
            "ol",
            "li",
            "a",
            "img",
            "div",
            "b",
            "span",
        )
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
    write_search_page(folder / "page.html", [Answer("mug", [Hit(folder / "gone.jpg", 0.3)])], folder, "m", 1)
    page = Reader((folder / "page.html").read_text(encoding="utf-8"))
    assert "missing-image" in page.words and not any(tag == "img" for tag, _ in page.tags)


def test_a_contact_sheet_has_all_captions_and_is_self_contained(tmp_path):
    evil = "<script>alert(1)</script>"
    pairs = [
        ShownPair(f"key {evil}", photo(1, 60, 40), ("first", f"second {evil}")),
        ShownPair("b\ud800", photo(2, 40, 60), ()),
    ]
    write_contact_sheet(tmp_path / "sheet.html", pairs, f"title {evil}")
    page = Reader((tmp_path / "sheet.html").read_text(encoding="utf-8"))
    assert not any(tag == "script" for tag, _ in page.tags)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert [image["alt"] for image in images] == [f"key {evil}", "b\ufffd"]
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    assert {f"title {evil}", "first", f"second {evil}"} <= set(page.words)
