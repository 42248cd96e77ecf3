"""Pages of reports and of photos: nothing is fetched, everything from outside is escaped, our Markdown comes through
whole."""

import html.parser
import os
import re

import pytest

from dinorankclip.data.inspect import ShownPair
from dinorankclip.report.figures import Drawn, new_figure
from dinorankclip.report.html import Grid, Page, Words, add_markdown, write_contact_sheet, write_search_page
from dinorankclip.search.photo_search import Answer, Hit
from tests.models.model_making import photo

EVIL = '<script>alert("1")</script> & <img src=x onerror=alert(1)>'
ODD = ["a b.jpg", "ü 日本.jpg", "quo\"te'.jpg", "<script>alert(1)<¤script>.jpg", "&amp;.jpg", "line\nbreak.jpg"]


class Reader(html.parser.HTMLParser):
    """Tags with attributes, all text, and whether every tag that opens is closed."""

    VOID = ("meta", "img", "br")

    def __init__(self, text):
        super().__init__()
        self.tags, self.words, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


def fetches(text: str) -> list[str]:
    """Everything that a browser would load from elsewhere."""
    page = Reader(text)
    found = [value for _, a in page.tags for name, value in a.items() if name in ("src", "href", "srcset", "action")]
    found += re.findall(r"url\(([^)]*)\)|@import", text)
    return [place for place in found if not place.startswith(("#", "data:image/"))]


def whole_page() -> str:
    page = Page(f"title {EVIL}", f"lead {EVIL}")
    page.section(f"one {EVIL}")
    page.text(EVIL)
    page.command(EVIL)
    page.table((EVIL, "n"), [(EVIL, "1")])
    page.grid(Grid(("", EVIL), ("", "paper (projected)"), ((Words("row"), Words(EVIL, bold=True)),)))
    figure = new_figure(1.0)
    figure.subplots().plot([0, 1])
    page.figure(Drawn("name", f"figure {EVIL}", f"caption {EVIL}", figure), level=3)
    page.details(EVIL, ("a",), [(EVIL,)])
    add_markdown(page, f"# head {EVIL}\n\ntext {EVIL}\n\n| a | b |\n| --- | --- |\n| {EVIL} | **b** |", 3)
    return page.html()


def test_everything_from_outside_is_escaped():
    page = Reader(whole_page())
    assert page.open == []
    assert not any(tag == "script" for tag, _ in page.tags)
    images = [a for tag, a in page.tags if tag == "img"]
    assert len(images) == 1 and set(images[0]) == {"class", "src", "alt"}
    assert not any(name.startswith("on") for _, a in page.tags for name in a)
    assert page.text.count(EVIL) >= 11 and f"caption {EVIL}" in page.text


def test_nothing_is_fetched():
    text = whole_page()
    assert fetches(text) == [] and "http" not in text
    assert fetches('<a href="https://x"></a><img src="//y">') == ["https://x", "//y"]


def test_contents_link_to_sections_that_are_there():
    page = Page("t")
    for heading, level in (("Tables", 2), ("Main", 3), ("Main", 3), ("Figures", 2), ("é ü", 3)):
        page.section(heading, level)
    found = Reader(page.html())
    anchors = [a["id"] for tag, a in found.tags if "id" in a]
    links = [a["href"] for tag, a in found.tags if tag == "a"]
    assert len(set(anchors)) == 5 and links == [f"#{anchor}" for anchor in anchors]


def test_papers_columns_stand_under_one_head():
    page = Page("t")
    page.grid(Grid(("", "n", "T@1", "T@1"), ("", "", "", "paper (projected)"), ((Words("a"),) * 4,)))
    text = page.html()
    assert '<th colspan="3"></th><th colspan="1" class="paper">paper (projected)</th>' in text


def added(text: str, level: int = 3, prefix: str = "") -> str:
    """What a page shows below its title."""
    page = Page("t")
    add_markdown(page, text, level, prefix)
    return page.html().partition("</h1>")[2].partition("</body>")[0]


def test_markdown_of_ours():
    text = (
        "# Claims\n\nSee **this** and `that`, *so*, [below](#first).\nSecond line.\n\n- one\n  goes on\n- two\n\n"
        "## first\n\n| a | b\\|c |\n| --- | --: |\n| x<br>y | 5 \\* 3 |"
    )
    markup = added(text, 3, "claim-")
    assert '<h3 id="claim-claims">Claims</h3>' in markup and '<h4 id="claim-first">first</h4>' in markup
    assert (
        "<p>See <strong>this</strong> and <code>that</code>, <em>so</em>, "
        '<a href="#claim-first">below</a>.\nSecond line.</p>' in markup
    )
    assert "<ul>\n<li>one\ngoes on</li>\n<li>two</li>\n</ul>" in markup
    assert "<th>b|c</th>" in markup and '<td class="text">x<br>y</td>\n<td class="text">5 * 3</td>' in markup
    assert '<div class="scroll"><table>' in markup


def test_markdown_links_to_elsewhere_become_words():
    assert "<p>words x</p>" in added("[words](study/full/tables/main.md) [x](https://example.org)")
    for text in ("![x](https://example.org/x.png)", "<https://example.org>", "[x](javascript:alert)", "<b>x</b>"):
        page = Reader(added(text))
        assert {tag for tag, _ in page.tags} == {"p"}, text
    assert [a["href"] for tag, a in Reader(added("[a](#x) [b](y) [c](#z)")).tags if tag == "a"] == ["#x", "#z"]


def test_bytes_of_names_that_are_no_text_can_be_written(tmp_path):
    page = Page(os.fsdecode(b"caf\xe9"))
    page.text("\ud800")
    page.write(tmp_path / "deep" / "page.html")
    text = (tmp_path / "deep" / "page.html").read_text(encoding="utf-8")
    assert "<h1>caf\ufffd</h1>" in text and "<p>\ufffd</p>" in text


@pytest.fixture
def photos(tmp_path):
    names = [name.replace("¤", "\u2215") for name in ODD] + [os.fsdecode(b"\xff.jpg")]
    for number, name in enumerate(names):
        photo(number, 90 + 200 * number, 120).save(tmp_path / name)
    return tmp_path, names


def test_a_search_page_escapes_everything_and_fetches_nothing(photos):
    folder, names = photos
    query = '<img src=x onerror="alert(1)"> & "more"'
    hits = [Hit(folder / name, 0.5 - 0.1 * number) for number, name in enumerate(names)]
    write_search_page(
        folder / "out" / "page.html", [Answer(query, hits), Answer(folder / names[3], hits[:1])], folder, "m<b>", 7
    )
    text = (folder / "out" / "page.html").read_text(encoding="utf-8")
    page = Reader(text)
    tags = "html head body meta title style header section h2 ol li a img div b span"
    assert {tag for tag, _ in page.tags} == set(tags.split())
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 9 and all(image["src"].startswith("data:image/jpeg;base64,") for image in images)
    assert all(set(image) == {"src", "alt"} for image in images)
    assert [image["alt"] for image in images[:6]] == names[:6]
    assert all(a["href"].startswith("file:///") for tag, a in page.tags if tag == "a")
    assert f"“{query}”" in page.words and "7 photos in" in "".join(page.words)
    scores = [word for word in page.words if word in ("0.500", "0.400", "-0.100")]
    assert scores == ["0.500", "0.400", "-0.100", "0.500"]
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
