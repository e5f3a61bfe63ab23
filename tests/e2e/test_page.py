# SPDX-License-Identifier: Apache-2.0
"""The page in a real Chromium, against a real pipeline. Screenshots go to SEMEL_SCREENSHOTS when it is set."""
import json
import os
import shutil
from pathlib import Path

import pytest
from program import wait_for
from story import HANDLER, mend, prepare, publish, words

webdriver = pytest.importorskip("selenium.webdriver", reason="the page: python3-selenium is not installed")
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
DESKTOP, PHONE = (1280, 900), (400, 800)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM or not DRIVER, reason="the page: chromium or chromium-driver is not installed"),
]


@pytest.fixture
def shop(semel):
    prepare(semel)
    return semel


@pytest.fixture
def url(shop):
    config = shop.folder / "semel.yaml"
    config.write_text(json.dumps({
        "relay": {}, "admin": {"listen": "127.0.0.1:0"},
        "subscriptions": [
            {"scope": "billing", "topics": ["order.events"], "sql": [HANDLER.format(scope="billing")]},
            {"scope": "audit", "topics": ["order.events"], "exec": "true"},
        ],
    }))
    child = shop.spawn("--config", str(config), "run", stderr=open(shop.folder / "log", "w"))
    return child.stdout.readline().split()[2]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path_factory.mktemp('chromium')}", "--window-size=1280,900"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service
    one = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield one
    one.quit()


@pytest.fixture
def browser(chromium):
    """With a desktop window and the light scheme; nothing of the last test is left."""
    chromium.set_window_size(*DESKTOP)
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    chromium.get_log("browser")
    yield chromium
    chromium.get("about:blank")  # the stream ends before its server does


def retry_stale(query):
    """The result of the query, which is repeated if the page replaces its elements in the meantime."""
    results = []

    def has_run():
        try:
            results[:] = [query()]
            return True
        except StaleElementReferenceException:
            return False
    wait_for(has_run, what="a query of elements that stay")
    return results[0]


def text(browser, selector):
    return retry_stale(lambda: browser.find_element(By.CSS_SELECTOR, selector).text)


def click(browser, selector, is_done):
    """Repeats the click until it has its effect: it is lost if the page is replacing the button."""
    def has_effect():
        until(browser, selector, lambda button: button.click())
        try:
            wait_for(is_done, timeout=5)
        except AssertionError:
            return False
        return True
    wait_for(has_effect, what=f"the effect of the click on {selector}")


def is_dialog_open(browser):
    return browser.find_element(By.ID, "confirm").get_attribute("open")


def save_screenshot(browser, name):
    folder = os.environ.get("SEMEL_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def flow_count(browser, label):
    """In one script: the page replaces the elements every second, and on a slow machine one call for each takes longer."""
    return browser.execute_script("""
        const one = [...document.querySelectorAll('.flow li')].find((item) => item.querySelector('small').textContent === arguments[0]);
        return one ? one.querySelector('b').textContent : null""", label)


def until(browser, selector, act):
    """Calls act with the element until it succeeds; the page may replace the element in the meantime."""
    def done():
        try:
            return act(browser.find_element(By.CSS_SELECTOR, selector)) is not False
        except (StaleElementReferenceException, NoSuchElementException):
            return False
    wait_for(done, timeout=60, what=selector)


def wait_flow_count(browser, label, value):
    wait_for(lambda: flow_count(browser, label) == value, timeout=60, what=f"{label} {value}")


def console_errors(browser):
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE" and "404" not in line["message"]]


def test_the_event_flow_is_drawn_live(shop, url, browser):
    browser.get(url)
    wait_for(lambda: text(browser, "#state-text") == "ready", timeout=60)
    for number in range(4):
        publish(shop, "good", str(number))
    wait_flow_count(browser, "processed", "8")
    wait_flow_count(browser, "published", "4")
    rows = retry_stale(lambda: {row.text.split()[0] for row in browser.find_elements(By.CSS_SELECTOR, "#subscriptions tbody tr")})
    assert rows == {"audit", "billing"}
    save_screenshot(browser, "overview")
    assert console_errors(browser) == []


def test_a_dead_letter_is_replayed_by_a_click_and_the_effect_happens(shop, url, browser):
    publish(shop, "bad", "1")
    publish(shop, "second", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60, what="the dead letter")
    wait_for(lambda: "1 parked behind it" in text(browser, "#letters li"), timeout=60)
    save_screenshot(browser, "dead-letters")
    mend(shop)
    click(browser, "#letters .replay", lambda: is_dialog_open(browser))
    assert "Replay dead letter?" in text(browser, "#confirm")
    save_screenshot(browser, "confirm")
    browser.find_element(By.ID, "confirm-yes").click()
    wait_for(lambda: words(shop) == ["bad", "second"], timeout=60, what="the effect")
    wait_for(lambda: not browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60, what="an empty list")
    assert console_errors(browser) == []


def test_cancelling_changes_nothing(shop, url, browser):
    publish(shop, "bad", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters .danger"), timeout=60)
    click(browser, "#letters .danger", lambda: is_dialog_open(browser))
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(lambda: not is_dialog_open(browser))
    assert shop.json("dlq", "count") == {"count": 1}


def test_a_trace_is_drawn_as_a_timeline(shop, url, browser):
    event_id = publish(shop, "good")
    wait_for(lambda: words(shop) == ["good"])
    browser.get(f"{url}/#event")
    field = browser.find_element(By.CSS_SELECTOR, "#search input")
    field.send_keys(event_id, Keys.ENTER)
    wait_for(lambda: "processed" in text(browser, "#timeline"), timeout=60)
    save_screenshot(browser, "event")


def test_the_contents_of_an_event_are_never_markup(shop, url, browser):
    shop.publish("--payload", '{"word": "bad"}', "--header", "correlationId=<img src=x onerror=alert(1)>", type="<b>x</b>.v1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60)
    click(browser, "#letters .buttons button", lambda: text(browser, "#letters pre"))  # the text of a hidden element is empty
    assert "<b>x</b>.v1" in text(browser, "#letters h3")
    assert browser.find_elements(By.CSS_SELECTOR, "#letters img, #letters b") == []


def test_a_subscription_is_paused_and_resumed(shop, url, browser):
    publish(shop, "good")
    browser.get(url)
    row = "tr[data-scope=billing]"
    click(browser, f"{row} button", lambda: is_dialog_open(browser))
    browser.find_element(By.ID, "confirm-yes").click()
    until(browser, row, lambda one: "paused" in one.text)
    click(browser, f"{row} button", lambda: "consuming" in text(browser, row))


def test_it_fits_a_phone(shop, url, browser):
    browser.set_window_size(*PHONE)
    publish(shop, "bad")
    browser.get(url)
    wait_flow_count(browser, "dead", "1")
    wide = browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    save_screenshot(browser, "phone")


def test_what_needs_attention_is_on_top_with_a_link(shop, url, browser):
    browser.get(url)
    wait_for(lambda: "No problems found" in text(browser, "#no-findings"), timeout=60, what="a page without findings")
    assert browser.title == "Semel"
    publish(shop, "bad", "1")
    publish(shop, "second", "1")
    until(browser, "#findings", lambda one: "billing: 1 dead letter pending, 1 event parked behind" in one.text)
    wait_for(lambda: browser.title == "(1) Semel", timeout=60, what="the number in the title")
    until(browser, "#findings a", lambda link: link.click())
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60, what="the dead letter")
    assert browser.find_element(By.NAME, "scope").get_attribute("value") == "billing"


def test_what_was_opened_stays_open_when_another_one_comes(shop, url, browser):
    publish(shop, "bad", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60)
    click(browser, "#letters .buttons button", lambda: text(browser, "#letters pre"))  # the text of a hidden element is empty
    publish(shop, "bad", "2")
    wait_for(lambda: len(browser.find_elements(By.CSS_SELECTOR, "#letters li")) == 2, timeout=60, what="the second one")
    shown = retry_stale(lambda: [one.is_displayed() for one in browser.find_elements(By.CSS_SELECTOR, "#letters pre")])
    assert shown == [True, False]
    assert browser.switch_to.active_element.text == "Event"


def test_more_tabs_than_a_browser_has_connections_are_all_served(shop, url, browser):
    """A browser opens six connections to one server; hidden tabs leave them to the others."""
    first = browser.current_window_handle
    try:
        for _ in range(9):
            browser.switch_to.new_window("tab")
            browser.set_page_load_timeout(60)
            browser.get(url)
            wait_for(lambda: text(browser, "#state-text") == "ready", timeout=60, what="a page that is served")
        publish(shop, "bad", "1")
        wait_flow_count(browser, "dead", "1")
        browser.switch_to.window(browser.window_handles[1])
        wait_flow_count(browser, "dead", "1")
    finally:
        for tab in browser.window_handles[1:]:
            browser.switch_to.window(tab)
            browser.close()
        browser.switch_to.window(first)


# Elements whose text has a contrast ratio (WCAG) below 4.5 to its background.
CONTRAST = """
const light = (color) => {
  const parts = color.match(/[0-9.]+/g).slice(0, 3).map((one) => one / 255).map((one) => one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
};
const behind = (one) => { while (one && /, 0\\)$|transparent/.test(getComputedStyle(one).backgroundColor)) one = one.parentElement; return getComputedStyle(one || document.body).backgroundColor; };
return [...document.querySelectorAll('body *')].filter((one) => one.offsetParent && [...one.childNodes].some((child) => child.nodeType === 3 && child.data.trim()))
  .map((one) => { const [a, b] = [light(getComputedStyle(one).color), light(behind(one))].sort((x, y) => y - x); return [(a + 0.05) / (b + 0.05), one.outerHTML.slice(0, 80)]; })
  .filter(([share]) => share < 4.5);
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_enough_contrast(shop, url, browser, scheme):
    publish(shop, "bad", "1")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.get(url)
    wait_flow_count(browser, "dead", "1")
    assert browser.execute_script(CONTRAST) == []
    save_screenshot(browser, f"overview-{scheme}")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60)
    assert browser.execute_script(CONTRAST) == []
    save_screenshot(browser, f"dead-{scheme}")


NAMED = {"button", "link", "textbox", "combobox", "table", "list", "img", "dialog", "navigation"}


def unnamed(browser):
    """Roles of the elements that have no name for a screen reader."""
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    seen = [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in nodes if not one["ignored"] and "role" in one]
    assert {"banner", "navigation", "main", "status"} <= {role for role, _ in seen}
    return [role for role, name in seen if role in NAMED - {"list", "table"} and not name]


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(shop, url, browser):
    publish(shop, "bad")
    for view in ("overview", "dead", "event", "audit"):
        browser.get(f"{url}/#{view}")
        browser.refresh()
        wait_for(lambda: text(browser, "#state-text") != "connecting…", timeout=60)
        nameless = browser.execute_script("""
            return [...document.querySelectorAll('button, a, input, select')].filter((one) => one.offsetParent !== null)
                .filter((one) => !(one.textContent.trim() || one.getAttribute('aria-label') || one.closest('label'))).length""")
        assert nameless == 0 and unnamed(browser) == []
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.find_element(By.ID, "h-audit").is_displayed()
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_a_dead_letter_is_discarded_by_keyboard_alone(shop, url, browser):
    publish(shop, "bad", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters .danger"), timeout=60)
    for _ in range(40):
        if browser.switch_to.active_element.text == "Discard…":
            break
        browser.switch_to.active_element.send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    wait_for(lambda: is_dialog_open(browser), timeout=60)
    browser.switch_to.active_element.send_keys("a test", Keys.ENTER)
    wait_for(lambda: shop.json("dlq", "count") == {"count": 0}, timeout=60, what="it to be discarded")
    (entry,) = shop.json("dlq", "list")
    assert entry["discardReason"] == "a test"


def test_the_picture_of_the_readme_can_be_taken(shop, url, browser):
    """A page with findings: scripts/screenshot stores it."""
    browser.set_window_size(1180, 900)
    browser.get(url)
    for number in range(12):
        publish(shop, "good", str(number))
    publish(shop, "bad", "7")
    publish(shop, "second", "7")
    wait_flow_count(browser, "dead", "1")
    wait_flow_count(browser, "parked", "1")
    until(browser, "tr[data-scope=audit]", lambda row: "consuming" in row.text)
    save_screenshot(browser, "page")
