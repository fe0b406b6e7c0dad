import importlib.resources
import json
import re
from urllib.parse import quote

import pytest

from tests.service.tiny import SOURCE_LEN

VIEWS = ("fill", "reverse", "read", "models")
SOURCE = "abcdefghijkl"


def settled(page, view):
    """Waits until a view shows the answer to its first question."""
    page.open(f"#{view}")
    shown = {"fill": "#fill-masks .card", "reverse": "#reverse-maps canvas",
             "read": "#read-result canvas", "models": "#models-list .card"}  # fmt: skip
    page.one(shown[view])


def test_fill_shows_bars_for_both_sides_and_each_side_alone(page):
    page.open("#fill?text=the+time&hide=5")
    page.one("#fill-masks .card")
    bars = page.find("#fill-masks .card .bar")
    assert len(bars) == 3 * 5
    names = [bar.get_attribute("aria-label") for bar in bars[:3]]
    assert [name.split(":")[0] for name in names] == [
        "both sides", "left side alone", "right side alone",
    ]  # fmt: skip
    assert "the t" in page.one("#fill-filled").text


def test_a_click_hides_a_character_and_another_shows_it_again(page):
    page.open("#fill?text=the+time&hide=")
    page.wait(lambda: "Nothing is hidden" in page.one("#fill-masks").text)
    button = page.find("#fill-characters button")[4]
    button.click()
    page.one("#fill-masks .card")
    assert button.get_attribute("aria-pressed") == "true"
    assert "hide=4" in page.hash()
    button.click()
    page.wait(lambda: not page.find("#fill-masks .card"))
    assert button.get_attribute("aria-pressed") == "false"


def test_typing_asks_again_and_what_is_hidden_moves_along(page):
    page.open("#fill?text=ab&hide=1")
    page.one("#fill-masks .card")
    page.run("const t = arguments[0]; t.value = 'xab'; t.dispatchEvent(new Event('input'))",
             page.one("#fill-text"))  # fmt: skip
    page.wait(lambda: "hide=2" in page.hash())
    page.wait(lambda: page.one("#fill-filled").text.startswith("xa"))


def test_the_strip_has_a_bar_for_every_character(page):
    page.open("#fill?text=the+time&hide=5")
    page.one("#fill-strip-box summary").click()
    page.one("#fill-strip svg")
    assert len(page.find("#fill-strip rect")) == len("the time")


def test_reverse_streams_and_then_shows_a_map_for_every_head(page):
    settled(page, "reverse")
    page.type("#reverse-text", SOURCE)
    page.one("#reverse-form button").click()
    page.wait(lambda: len(page.one("#reverse-output").text) == SOURCE_LEN)
    page.one("#reverse-maps canvas")
    titles = [caption.text for caption in page.find("#reverse-maps figcaption")]
    assert titles == ["Mean of the heads", "Head 1", "Head 2"]
    assert re.search(r"for \d", page.one("#reverse-agreement").text)


def test_a_map_is_read_by_keyboard(page):
    from selenium.webdriver.common.keys import Keys

    settled(page, "reverse")
    canvas = page.one("#reverse-maps canvas")
    canvas.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    told = page.one("#reverse-maps figure .hint").text
    assert re.search(r"\(2\) looks at . \(2\): 0\.\d{3}|\(2\) looks at . \(2\): 1\.000", told), told


def test_a_map_is_read_by_pointer(page):
    from selenium.webdriver import ActionChains

    settled(page, "reverse")
    canvas = page.one("#reverse-maps canvas")
    ActionChains(page.browser).move_to_element(canvas).perform()
    assert "looks at" in page.one("#tip").text


def test_what_the_service_refuses_is_shown_in_its_words(page):
    page.expected_errors = ("422",)
    settled(page, "reverse")
    page.type("#reverse-text", "abc")
    page.one("#reverse-form button").click()
    message = page.one("#reverse-error").text
    assert message == f"inputs: expected exactly {SOURCE_LEN} symbols, got 3"
    page.picture("refused")


def test_read_shows_latents_what_they_read_and_the_text_that_came_back(page):
    page.open("#read?text=the+time+machine")
    page.one("#read-result canvas")
    titles = [caption.text for caption in page.find("#read-result figcaption")]
    assert titles == [
        "What each latent read: latents down, characters across",
        "The latents, one a row",
    ]
    assert "16 vectors became 4 latents of 8 numbers" in page.one("#read-summary").text
    back = page.one("#read-result .kept")
    assert len(back.text.replace("␣", " ")) == len("the time machine")


def test_read_takes_an_array_from_a_file(page, tmp_path):
    import numpy as np

    file = tmp_path / "features.npy"
    np.save(file, np.zeros((7, 8), np.float32))
    settled(page, "read")
    page.one("#read-file").send_keys(str(file))
    page.wait(lambda: "7 vectors became 4 latents" in page.one("#read-summary").text)


def test_the_cost_of_reading_is_measured_here(page):
    settled(page, "read")
    page.one("#read-measure").click()
    page.wait(lambda: "this service, now" in page.one("#read-cost").text)
    page.wait(lambda: page.one("#read-measure").is_enabled())


def test_models_have_cards_with_their_figures(page):
    settled(page, "models")
    titles = [title.text for title in page.find("#models-list h3")]
    assert titles == [
        f"{name}, version 1" for name in ("causal-lm", "masked-lm", "perceiver", "reversal")
    ]
    assert "masked accuracy" in page.one("#models-list").text


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_has_no_fault_that_axe_finds_in_light_or_dark(page, view):
    settled(page, view)
    axe = importlib.resources.files("axe_core_python") / "axe.min.js"
    page.run(axe.read_text(encoding="utf-8"))
    for is_dark in (False, True):
        page.dark(is_dark=is_dark)
        page.picture(f"{view}-{'dark' if is_dark else 'light'}")
        found = page.browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        told = {v["id"]: [node["html"] for node in v["nodes"]] for v in found["violations"]}
        assert not told, json.dumps(told, indent=2)
    page.dark(is_dark=False)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_fits_a_phone(page, view):
    page.browser.set_window_size(390, 800)
    try:
        settled(page, view)
        page.picture(f"{view}-phone")
        widest = page.run("return document.documentElement.scrollWidth")
        assert widest <= page.run("return document.documentElement.clientWidth")
    finally:
        page.browser.set_window_size(1200, 1400)


def test_the_command_is_that_of_what_is_on_the_screen(page):
    page.open(f"#reverse?text={SOURCE}")
    page.one("#reverse-maps canvas")
    command = page.one("#command-text").text
    assert command.startswith(f"curl -s {page.address}/v1/decode")
    body = json.loads(re.search("-d '(.*)'$", command, re.DOTALL)[1])
    assert body == {"model": "reversal", "inputs": SOURCE, "attention": True}
    page.one("#command-copy").click()
    page.wait(lambda: page.one("#command-copied").text)


def test_a_link_reopens_what_was_on_the_screen(page):
    text = "what's up, Doc? 100%"
    page.open(f"#fill?text={quote(text)}&hide=1,3")
    page.one("#fill-masks .card")
    assert page.one("#fill-text").get_attribute("value") == text
    link = page.hash()
    page.open(link)
    page.one("#fill-masks .card")
    assert page.hash() == link
    pressed = page.find('#fill-characters button[aria-pressed="true"]')
    assert [button.get_attribute("data-index") for button in pressed] == ["1", "3"]


def test_the_keyboard_reaches_and_moves_through_the_views(page):
    from selenium.webdriver.common.keys import Keys

    settled(page, "fill")
    link = next(link for link in page.find("nav a") if link.text == "Models")
    link.send_keys(Keys.ENTER)
    page.one("#models-list .card")
    assert link.get_attribute("aria-current") == "page"


def test_a_key_is_asked_for_and_then_used(browser, address_with_key, page):
    guarded = type(page)(browser, address_with_key)
    page.expected_errors = ("401",)
    guarded.open("#reverse")
    guarded.type("#key", "sesame")
    guarded.one("#key-form button").click()
    guarded.one("#reverse-maps canvas")
    assert "Authorization: Bearer $TRIWIRE_KEY" in guarded.one("#command-text").text
    assert "sesame" not in guarded.one("#command-text").text


def test_nothing_is_loaded_from_elsewhere(page):
    for view in VIEWS:
        settled(page, view)
        names = page.run("return performance.getEntriesByType('resource').map((e) => e.name)")
        assert names
        own = (f"{page.address}/", f"blob:{page.address}/")
        assert all(name.startswith(own) for name in names)
