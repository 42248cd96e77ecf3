"""What holds on every page: keys, colours, width, weight, words for what is wrong, and text that stays text."""

import threading
from urllib.parse import quote

import pytest

from tests.browser.conftest import running

pytestmark = pytest.mark.browser

PAGES = ("/", "/search?q=scene", "/inside/2?q=thing", "/lists", "/planes", "/data", "/runs", "/about")
MOST_BYTES = 300_000
DARKEST = 60  # of 255, the sum of three channels of a dark page's background is below three times that


def brightness(page):
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(int(part) for part in colour[4:-1].split(",")) / 3


def test_every_page_weighs_little_stays_here_and_fits_a_phone(watch, two):
    """Errors and requests to other machines fail the test when its pages close."""
    for width in (1280, 360):
        watched = watch(two, viewport={"width": width, "height": 740})
        watched.page.route("**/*", lambda route: route.continue_())  # a page that is routed keeps no copies
        for path in PAGES:
            page = watched.open(path, ready=False)
            page.wait_for_timeout(500)
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{path} is {wide} pixels wide on a screen of {width}"
            weight = sum(watched.received.values())
            assert 50_000 < weight <= MOST_BYTES, f"{path} weighs {weight} bytes: {watched.received}"
            assert "null" not in page.inner_text("main") or path == "/about"
            assert "[object" not in page.inner_text("main") and "undefined" not in page.inner_text("main")


def test_no_page_holds_a_script_or_a_style_of_its_own_and_every_control_has_a_name(watch, two):
    watched = watch(two)
    unnamed = """() => [...document.querySelectorAll('input, select, button, a[href], canvas, img')].filter(node =>
        !(node.labels?.length || node.getAttribute('aria-label') || node.textContent.trim() || node.title
          || (node.tagName === 'IMG' && node.hasAttribute('alt')) || node.querySelector('img[alt]:not([alt=""])')
          || node.closest('[hidden]'))).map(node => node.outerHTML)"""
    for path in PAGES:
        page = watched.open(path, ready=False)
        page.wait_for_timeout(300)
        assert page.evaluate(unnamed) == [], path
        assert page.locator("script:not([src])").count() == 0 and page.locator("style").count() == 0
        answer = page.request.get(two + path)
        assert "style=" not in answer.text() and "onclick" not in answer.text()
        assert "default-src 'none'" in answer.headers["content-security-policy"]


def test_dark_follows_the_system_and_the_switch_is_remembered(watch, two):
    page = watch(two, color_scheme="dark").open("/")
    assert brightness(page) < DARKEST
    page.click("#theme")
    assert brightness(page) > 200
    page.reload()
    assert brightness(page) > 200
    page = watch(two, color_scheme="light").open("/planes")
    assert brightness(page) > 200
    page.wait_for_selector("canvas.plane")
    drawn = page.locator("canvas.plane").first
    before = drawn.evaluate("canvas => canvas.toDataURL()")
    page.click("#theme")
    assert brightness(page) < DARKEST
    assert drawn.evaluate("canvas => canvas.toDataURL()") != before


def test_keys_alone_suffice(watch, two):
    page = watch(two).open("/?q=warm")
    page.wait_for_selector(".hit")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["y"] >= 0
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "q"
    page.keyboard.press("Control+A")
    page.keyboard.type("scene number 9")
    page.keyboard.press("Enter")
    page.wait_for_selector("blockquote:has-text('scene number 9')")
    focused = "document.activeElement.matches('.col-a .hit')"
    for _ in range(8):
        if page.evaluate(focused):
            break
        page.keyboard.press("Tab")
    assert page.evaluate(focused)
    assert page.locator(".col-a .hit.lit").count() == 1  # the focus lights an item as the mouse does
    page.keyboard.press("Enter")
    page.wait_for_url("**/inside/*")
    page.wait_for_selector("figcaption:has-text('cosine with the chosen patch, ')")
    for _ in range(40):
        if page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
        page.keyboard.press("Tab")
    label = page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowUp")
    page.wait_for_function("old => document.activeElement.getAttribute('aria-label') !== old", arg=label)
    assert "Arrow keys choose another patch" in label


def test_what_is_not_there_is_a_sentence(watch, two):
    watched = watch(two)
    page = watched.open("/nothing-here", ready=False)
    assert "404" in page.inner_text("h1") and "there is nothing at this address" in page.inner_text("main")
    page = watched.open("/inside/999")
    page.wait_for_selector("#about .error")
    assert "999" in page.inner_text("#about .error")
    page = watched.open("/inside/word", ready=False)
    assert "integer" in page.inner_text("main") and "Traceback" not in page.content()
    assert len(watched.problems) == 3 and all("Failed to load resource" in problem for problem in watched.problems)
    watched.problems.clear()


def test_no_token_no_page(chromium, two):
    page = chromium.new_page()
    assert page.goto(two + "/inside/0").status == 401
    assert "token" in page.inner_text("main") and page.locator("img").count() == 0
    page.close()


def test_a_damaged_photo_is_named_in_words(watch, two):
    page = watch(two).open("/inside/4")
    page.wait_for_selector("#about >> text=This file is damaged")
    page.wait_for_function("() => document.querySelector('#about img').naturalWidth > 0")  # a drawn picture
    assert page.locator("#models canvas").count() == 0


def test_hostile_captions_and_names_stay_text(watch, two):
    """A dialog, an error of the policy or a request for `x` would fail the test at its end."""
    hostile = '<script>alert(1)</script>" onload="x'
    watched = watch(two)
    for path in ("/inside/2", "/?image=2", "/?caption=4", "/lists?anchor=2&items=0,1,2,3,5&from=caption"):
        page = watched.open(path)
        page.wait_for_selector("img")
        page.wait_for_function("words => document.body.innerText.includes(words)", arg=hostile)
        assert page.locator("[onload], main script").count() == 0
    page = watched.open("/inside/7")
    page.wait_for_selector('h2:has-text("07\\"><img src=x>")')
    page = watched.open(f"/search?q={quote(hostile)}")
    page.wait_for_selector("h2:has-text('<script>')")
    page = watched.open("/data?queue=lowest-cosine")
    page.wait_for_selector("#queue .item")
    page.wait_for_function("words => document.body.innerText.includes(words)", arg='07"><img src=x>')
    assert page.locator("main script, img:not([src^='/api/image/'])").count() == 0
    assert not any(url.endswith("/x") for url in watched.requests)


def test_progress_is_shown_until_the_set_is_ready(watch, serve):
    with running(serve("zero")) as (state, address):
        state.progress = {"what": "embedding images", "done": 3, "total": 24}
        page = watch(address).open("/", ready=False)
        page.wait_for_selector("text=embedding images: 3 of 24.")
        assert page.get_attribute("progress", "value") == "3" and page.is_hidden("#ready")
        threading.Thread(target=state.prepare).start()
        page.wait_for_selector("#q:visible")
        assert page.locator("#progress").count() == 0


def test_a_failed_preparation_is_named(watch, serve):
    with running(serve("zero")) as (state, address):
        state.failed = "the disk is full: free some space"
        page = watch(address).open("/", ready=False)
        assert page.wait_for_selector(".error").inner_text().strip().endswith("the disk is full: free some space")
