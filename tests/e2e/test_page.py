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


@pytest.fixture
def browser(tmp_path):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path}/chromium", "--window-size=1280,900"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service
    one = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield one
    one.quit()


def text(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector).text


def shoot(browser, name):
    folder = os.environ.get("SEMEL_SCREENSHOTS")
    if folder:
        browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def station(browser, label):
    for item in browser.find_elements(By.CSS_SELECTOR, ".way li"):
        if item.text.startswith(label + "\n"):
            return item.find_element(By.TAG_NAME, "b").text
    return None


def until(browser, selector, act):
    """Does it with the element; the list may be drawn anew in between, and then it is tried again."""
    def done():
        try:
            return act(browser.find_element(By.CSS_SELECTOR, selector)) is not False
        except (StaleElementReferenceException, NoSuchElementException):
            return False
    wait_for(done, timeout=60, what=selector)


def wait_station(browser, label, value):
    def there():
        try:
            return station(browser, label) == value
        except StaleElementReferenceException:  # the list was drawn anew meanwhile
            return False
    wait_for(there, timeout=60, what=f"{label} {value}")


def complaints(browser):
    return [line["message"] for line in browser.get_log("browser") if line["level"] == "SEVERE" and "404" not in line["message"]]


def test_the_way_of_an_event_is_drawn_live(shop, url, browser):
    browser.get(url)
    wait_for(lambda: text(browser, "#state-text") == "ready", timeout=60)
    for number in range(4):
        publish(shop, "good", str(number))
    wait_station(browser, "processed", "8")
    wait_station(browser, "confirmed", "4")
    rows = {row.text.split()[0] for row in browser.find_elements(By.CSS_SELECTOR, "#subscriptions tbody tr")}
    assert rows == {"audit", "billing"}
    shoot(browser, "overview")
    assert complaints(browser) == []


def test_a_dead_letter_is_replayed_by_a_click_and_the_effect_happens(shop, url, browser):
    publish(shop, "bad", "1")
    publish(shop, "second", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60, what="the dead letter")
    wait_for(lambda: "1 wait behind it" in text(browser, "#letters li"), timeout=60)
    shoot(browser, "dead-letters")
    mend(shop)
    browser.find_element(By.CSS_SELECTOR, "#letters .replay").click()
    assert "Replay this event?" in text(browser, "#ask")
    shoot(browser, "confirm")
    browser.find_element(By.ID, "ask-yes").click()
    wait_for(lambda: words(shop) == ["bad", "second"], timeout=60, what="the effect")
    wait_for(lambda: not browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60, what="an empty list")
    assert complaints(browser) == []


def test_cancelling_changes_nothing(shop, url, browser):
    publish(shop, "bad", "1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters .danger"), timeout=60)
    browser.find_element(By.CSS_SELECTOR, "#letters .danger").click()
    browser.switch_to.active_element.send_keys(Keys.ESCAPE)
    wait_for(lambda: not browser.find_element(By.ID, "ask").get_attribute("open"))
    assert shop.json("dlq", "count") == {"count": 1}


def test_the_life_of_an_event_is_a_timeline(shop, url, browser):
    event_id = publish(shop, "good")
    wait_for(lambda: words(shop) == ["good"])
    browser.get(f"{url}/#event")
    field = browser.find_element(By.CSS_SELECTOR, "#search input")
    field.send_keys(event_id, Keys.ENTER)
    wait_for(lambda: "processed" in text(browser, "#life"), timeout=60)
    shoot(browser, "event")


def test_what_an_event_says_is_never_markup(shop, url, browser):
    shop.publish("--payload", '{"word": "bad"}', "--header", "correlationId=<img src=x onerror=alert(1)>", type="<b>x</b>.v1")
    browser.get(f"{url}/#dead")
    wait_for(lambda: browser.find_elements(By.CSS_SELECTOR, "#letters li"), timeout=60)
    browser.find_element(By.XPATH, "//button[text()='Event']").click()
    assert "<b>x</b>.v1" in text(browser, "#letters h3")
    assert browser.find_elements(By.CSS_SELECTOR, "#letters img, #letters b") == []


def test_a_subscription_is_paused_and_resumed(shop, url, browser):
    publish(shop, "good")
    browser.get(url)
    row = "tr[data-scope=billing]"
    until(browser, f"{row} button", lambda button: button.click())
    browser.find_element(By.ID, "ask-yes").click()
    until(browser, row, lambda one: "paused" in one.text)
    until(browser, f"{row} button", lambda button: button.click())
    until(browser, row, lambda one: "taking" in one.text)


def test_it_fits_a_phone(shop, url, browser):
    browser.set_window_size(400, 800)
    publish(shop, "bad")
    browser.get(url)
    wait_station(browser, "dead", "1")
    wide = browser.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0
    shoot(browser, "phone")


def test_every_control_has_a_name_and_can_be_reached_by_keyboard(shop, url, browser):
    publish(shop, "bad")
    for view in ("overview", "dead", "event", "audit"):
        browser.get(f"{url}/#{view}")
        browser.refresh()
        wait_for(lambda: text(browser, "#state-text") != "connecting…", timeout=60)
        nameless = browser.execute_script("""
            return [...document.querySelectorAll('button, a, input, select')].filter((one) => one.offsetParent !== null)
                .filter((one) => !(one.textContent.trim() || one.getAttribute('aria-label') || one.closest('label'))).length""")
        assert nameless == 0
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "Skip to the content"
