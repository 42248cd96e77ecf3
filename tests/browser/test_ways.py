"""The ways through the pages: search, duel, inside an image, lists, planes, data, runs."""

import re

import pytest

pytestmark = pytest.mark.browser

PIXELS = "canvas => canvas.toDataURL()"


def ranks(page, side):
    return page.locator(f".duel ol.col-{side} .hit").evaluate_all("hits => hits.map(hit => hit.dataset.index)")


def test_from_a_search_over_a_duel_to_the_maps_of_a_patch(watch, two):
    page = watch(two).open("/search")
    page.fill("#q", "scene number 9")
    page.press("#q", "Enter")
    page.wait_for_selector(".photos .tile")
    assert page.locator(".photos .tile").count() == 12

    page.click("nav >> text=Duel")
    page.fill("#q", "scene number 9 with a thing")
    page.click("text=Compare")
    page.wait_for_selector("blockquote:has-text('scene number 9')")
    a, b = ranks(page, "a"), ranks(page, "b")
    assert len(a) == len(b) == 10
    common = set(a) & set(b)
    assert f"{len(common)} of 10" in page.inner_text(".facts")
    page.wait_for_function("n => document.querySelectorAll('.lines path').length === n", arg=len(common))

    page.click(".duel ol.col-b .hit >> nth=0")
    page.wait_for_url(f"**/inside/{b[0]}")
    page.wait_for_selector("figcaption:has-text('Student: cosine with the chosen patch, ')")
    maps = page.locator(".maps figure:has(figcaption:has-text('cosine')) canvas")
    assert maps.count() == 3  # trunk and student of model A, trunk of model B
    before = maps.evaluate_all("all => all.map(canvas => canvas.toDataURL())")
    box = page.locator(".maps canvas").first.bounding_box()
    asked = "/patch?"
    with page.expect_response(lambda answer: asked in answer.url and "source=student" in answer.url):
        page.mouse.click(box["x"] + 8, box["y"] + 8)
    page.wait_for_function("() => document.querySelector('#status').textContent === 'Patch in row 1, column 1.'")
    after = maps.evaluate_all("all => all.map(canvas => canvas.toDataURL())")
    assert all(one != other for one, other in zip(before, after))


def test_words_light_patches_and_the_gate_is_described(watch, two):
    page = watch(two).open("/inside/3")
    page.wait_for_selector(".gate")
    assert re.search(r"\d+ of \d+ dimensions", page.inner_text(".gate"))
    assert "It has no fusion, so there are no gates and no angle." in page.inner_text("#models")
    page.fill("#q", "a thing")
    page.click("text=Show where")
    page.wait_for_selector("figcaption:has-text('“a thing”: cosine with each patch of the trunk')")


def test_the_whole_set_and_its_queries_one_by_one(watch, two):
    page = watch(two).open("/")
    page.wait_for_selector(".queries [aria-selected=true]")
    assert page.locator(".forest g").count() == 3
    assert re.search(r"B (ranks the right image|finds)|No difference", page.inner_text("#summary"))
    first = page.inner_text("blockquote")
    assert page.inner_text("#place").startswith("1 of ")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("first => document.querySelector('blockquote').textContent !== first", arg=first)
    assert page.inner_text("#place").startswith("2 of ")
    right = page.locator(".hit.is-right").first
    assert right.count() == 0 or "✓ right" in right.inner_text()
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("first => document.querySelector('blockquote').textContent === first", arg=first)

    page.click("text=B lost")
    page.wait_for_function("() => document.querySelector('#outcomes [aria-pressed=true]').dataset.value === 'lost'")
    page.wait_for_selector(".queries [aria-selected=true]")
    before, after = page.inner_text(".queries [aria-selected=true] .ranks").split(" → ")
    assert int(before) < int(after)

    page.click("text=Image → captions")
    page.wait_for_selector(".duel.captions-only .hit")
    page.wait_for_selector(".query-now img")


def test_the_right_item_is_framed_and_the_address_shows_it_again(watch, two):
    page = watch(two).open("/?caption=0&k=20")
    page.wait_for_selector(".hit.is-right")
    assert page.locator(".hit.is-right").count() == 2 and page.locator(".hit.is-wrong").count() == 38
    assert "The right image: A " in page.inner_text(".facts")
    assert page.input_value("#k") == "20"


def test_the_slider_of_the_order_sorts_the_list_anew(watch, two):
    page = watch(two).open("/lists?items=0,1,2,3,5,6,8,9,10,11,12,13&anchor=0")
    page.wait_for_selector("#sorted li")
    order = "() => [...document.querySelectorAll('#sorted li')].map(line => line.dataset.item)"
    first, nll = page.evaluate(order), page.inner_text("#nll")
    assert "has utilities alone" in page.inner_text("#tables") or "utilities alone" in page.inner_text("#tables")
    assert page.locator("#orders li.off").count() >= 1  # order 3 was inert at the end of this run
    page.focus("#order")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tables h3:has-text('β̃')")
    assert page.inner_text("#order-words") == "2"
    assert page.inner_text("#nll") != nll
    assert sorted(page.evaluate(order)) == sorted(first) and page.evaluate(order) != first
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tables h3:has-text('γ̃')")

    page.focus("#position")
    page.keyboard.press("ArrowRight")
    assert page.locator("#sorted li").first.inner_text().endswith("listed")
    shares = [float(text) for text in re.findall(r"([\d.]+) %", page.inner_text("#sorted"))]
    assert len(shares) == 11 and abs(sum(shares) - 100) < 0.6


def test_a_brush_in_one_plane_lights_the_other(watch, two):
    page = watch(two).open("/planes")
    page.wait_for_selector("canvas.plane >> nth=1")
    left, right = page.locator("canvas.plane").all()
    dark = right.evaluate(PIXELS)
    box = left.bounding_box()
    page.mouse.move(box["x"] + 4, box["y"] + 4)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 4, steps=4)
    page.mouse.up()
    page.wait_for_selector("#brushed .tile")
    chosen = int(re.search(r"(\d+) images in the rectangle", page.inner_text("#brushed"))[1])
    assert 0 < chosen < 23 and "false" not in page.inner_text("#brushed")
    assert f"{chosen} brushed" in right.get_attribute("aria-label")
    assert right.evaluate(PIXELS) != dark
    page.click("text=Clear the brush")
    assert right.evaluate(PIXELS) == dark


def test_a_plane_is_brushed_by_keys(watch, two):
    page = watch(two).open("/planes")
    page.wait_for_selector("canvas.plane >> nth=1")
    left, right = page.locator("canvas.plane").all()
    left.focus()
    for key in "+" * 12:
        page.keyboard.press(key)
    page.keyboard.press("ArrowRight")
    assert " 0 brushed" not in right.get_attribute("aria-label")
    page.keyboard.press("Escape")
    assert " 0 brushed" in right.get_attribute("aria-label")


def test_ticked_keys_are_exported(watch, two):
    page = watch(two).open("/data?queue=lowest-cosine")
    page.wait_for_selector("#queue .item")
    assert page.is_disabled("#export")
    box = page.locator("#queue .item input").first
    key = box.get_attribute("value")
    box.check()
    page.click("#queues button:has-text('Damaged')")
    page.wait_for_selector("#queue .item b:text-is('04.jpg')")
    page.locator("#queue .item input").first.check()
    assert "2 ticked" in page.inner_text("#ticked")
    assert page.get_attribute("#queue-damaged", "aria-pressed") == "true"
    with page.expect_download() as download:
        page.click("#export")
    with open(download.value.path(), encoding="utf-8") as file:
        assert file.read().splitlines() == [key, "04.jpg"]
    page.click("#queues button:has-text('Near duplicates')")
    page.wait_for_selector("#queue >> text=/look the same|Nothing is in this queue/")
    page.click("#queues button:has-text('Lowest cosine')")
    page.wait_for_selector("#queue .item")
    page.wait_for_function("() => [...document.querySelectorAll('#queue input')].some(box => box.checked)")
    shown = page.locator("#queue input").evaluate_all("boxes => boxes.map(box => [box.value, box.checked])")
    assert {name for name, on in shown if on} == {key} and all(on for name, on in shown if name == key)


def test_runs_have_curves(watch, two):
    page = watch(two).open("/runs", ready=False)
    page.wait_for_selector(".curves canvas")
    assert page.locator("#runs tbody tr").count() == 2
    page.click("#runs button:has-text('zero')")
    page.wait_for_selector("#curves h2:has-text('zero')")
    page.wait_for_selector("text=Live: changes appear by themselves.")
    assert "loss: 2.1" in page.inner_text("#curves")


def test_about_documents_every_route(watch, two):
    page = watch(two).open("/about", ready=False)
    page.wait_for_selector(".call >> nth=12")
    paths = page.evaluate("async () => Object.keys((await (await fetch('/api/openapi.json')).json()).paths)")
    shown = page.inner_text("#calls")
    assert len(paths) > 15 and all(path in shown for path in paths)
    assert "It is of order 0" in page.inner_text("#opened")


def test_one_model_searches_by_words_and_by_a_photo(watch, one, place):
    page = watch(one).open("/")
    assert page.inner_text("h1") == "Search"
    page.set_input_files("#file", place / "pairs" / "05.jpg")
    page.wait_for_selector("h2:has-text('Like 05.jpg')")
    assert page.locator(".tile").first.get_attribute("href") == "/inside/5"
    page.goto(f"{one}/lists")
    page.wait_for_selector("#sorted li")
    assert "The model learnt no lists" in page.inner_text("#notes")
