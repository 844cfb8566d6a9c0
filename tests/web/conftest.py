"""A real browser for the tests of the page: whatever Chromium is installed, driven by Playwright."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
DESK = {"width": 1200, "height": 860}


UNREADABLE = """() => {
  const parts = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const over = (top, below) => {
    const alpha = top.length > 3 ? top[3] : 1;
    return [0, 1, 2].map(i => top[i] * alpha + below[i] * (1 - alpha));
  };
  const behind = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      const style = getComputedStyle(e);
      if (style.backgroundImage !== "none") return null;
      layers.push(parts(style.backgroundColor));
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || element.closest(".cm-editor, script, style, [disabled]")) continue;
    if (!element.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
    const box = element.getBoundingClientRect();
    const ground = behind(element);
    if (!box.width || !box.height || ground === null) continue;
    const style = getComputedStyle(element);
    const ink = over(parts(element.closest("svg") ? style.fill : style.color), ground);
    const [a, b] = [light(ink), light(ground)].sort((x, y) => y - x);
    const size = parseFloat(style.fontSize);
    const needed = size >= 24 || (size >= 18.6 && parseInt(style.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < needed) found.push(`${ratio.toFixed(2)} ${node.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""

CLIPPED = """() => Array.from(document.querySelectorAll("svg[role=img] text"))
  .filter(text => {
    const drawing = text.ownerSVGElement.getBoundingClientRect(), box = text.getBoundingClientRect();
    return box.width && (box.left < drawing.left - 1 || box.right > drawing.right + 1);
  })
  .map(text => text.textContent)"""


class Visitor:
    """One person before one tab."""

    def __init__(self, tab: Any, screenshots: Path) -> None:
        self.tab = tab
        self._screenshots = screenshots
        self.foreign: list[str] = []

    def open(self, url: str) -> None:
        self.tab.goto(f"{url}/web/")
        self.sees("button", "Reset")

    def sees(self, selector: str, text: str = "") -> None:
        """Wait until something is there, with that text."""
        found = self.tab.locator(selector, has_text=text) if text else self.tab.locator(selector)
        found.first.wait_for(state="visible", timeout=20_000)

    def text(self, selector: str) -> str:
        return str(self.tab.locator(selector).first.inner_text())

    def shows(self, value: str) -> None:
        """Wait until the box called `shown` says so."""
        self.tab.wait_for_function(
            "v => document.querySelector('#shown textarea, #shown input')?.value === v",
            arg=value,
            timeout=20_000,
        )

    def count(self, selector: str) -> int:
        return int(self.tab.locator(selector).count())

    def press(self, name: str) -> None:
        self.tab.get_by_role("button", name=name, exact=True).first.click()

    def go_to(self, tab: str) -> None:
        """Open a tab of the page."""
        self.tab.get_by_role("tab", name=tab, exact=True).first.click()

    def unfold(self, title: str) -> None:
        self.tab.get_by_role("button", name=title).first.click()

    def steps_taken(self, count: int) -> None:
        """Wait until the history has that many steps."""
        self.tab.wait_for_function(
            "n => document.querySelectorAll('#et-history details').length === n + 1",
            arg=count,
            timeout=20_000,
        )

    def unreadable_text(self) -> list[str]:
        """Texts with less than 4.5 to 1 contrast to what is behind them, 3 to 1 where they are large."""
        found: list[str] = self.tab.evaluate(UNREADABLE)
        return found

    def clipped_labels(self) -> list[str]:
        """Labels of charts that reach beyond their drawing."""
        found: list[str] = self.tab.evaluate(CLIPPED)
        return found

    def photograph(self, name: str) -> None:
        self._screenshots.mkdir(parents=True, exist_ok=True)
        self.tab.wait_for_timeout(150)  # a fade-in has ended
        self.tab.screenshot(path=self._screenshots / f"{name}.png", animations="disabled")


Arrive = Callable[..., AbstractContextManager[Visitor]]


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="make test-browser installs Playwright")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def arrive(chromium: Any, pytestconfig: pytest.Config) -> Arrive:
    """Somebody opens the browser. Nothing they do may leave this machine."""
    screenshots = Path(pytestconfig.getoption("--screenshots"))

    @contextmanager
    def arriving(*, phone: bool = False, dark: bool = False) -> Iterator[Visitor]:
        context = chromium.new_context(
            viewport=PHONE if phone else DESK,
            color_scheme="dark" if dark else "light",
            device_scale_factor=1,
            has_touch=phone,
        )
        visitor = Visitor(context.new_page(), screenshots)

        def stay(route: Any) -> None:
            if route.request.url.startswith(("http://127.0.0.1", "data:", "blob:")):
                route.continue_()
            else:
                visitor.foreign.append(route.request.url)
                route.abort()

        visitor.tab.route("**/*", stay)
        try:
            yield visitor
        finally:
            context.close()
        assert visitor.foreign == [], "the page asked for something from elsewhere"

    return arriving
