"""A real Chromium for tests of the pages, and a reader of HTML for tests of links."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from shutil import which
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WATCH_POLICY = """
document.addEventListener("securitypolicyviolation", (event) =>
  console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));
"""


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A headless browser."""
    binary = next(filter(None, map(which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert binary is not None, "install Chromium: the pages are tested in a real browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=binary, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page that was opened, and everything that it did wrong."""

    page: Page
    troubles: list[str] = field(default_factory=list)

    def goto(self, path: Path, fragment: str = "") -> Visit:
        """Open a file of a site."""
        self.page.goto(path.as_uri() + fragment)
        return self

    def text(self, selector: str) -> str:
        """The text of the first match, as a reader sees it."""
        return self.page.inner_text(selector)

    def ask(self, script: str) -> Any:
        """The value of a script in the page."""
        return self.page.evaluate(script)


@contextlib.contextmanager
def visit(browser: Browser, **options: Any) -> Iterator[Visit]:
    """A new page whose console messages, errors and requests beyond ``file:`` are collected."""
    context = browser.new_context(**options)
    page = context.new_page()
    made = Visit(page)
    if options.get("java_script_enabled", True):
        page.add_init_script(WATCH_POLICY)
    page.on("console", lambda message: made.troubles.append(f"console {message.type}: {message.text}"))
    page.on("pageerror", lambda error: made.troubles.append(f"error: {error}"))
    page.on("requestfailed", lambda request: made.troubles.append(f"failed: {request.url}"))

    def check(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            made.troubles.append(f"request: {request.url}")

    page.on("request", check)
    try:
        yield made
    finally:
        context.close()


class Links(HTMLParser):
    """All ids, and all addresses that a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.inline: list[str] = []
        """Handlers, styles and scripts inside the page, which a strict policy forbids."""
        self._in_script = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if values.get("id"):
            self.ids.append(str(values["id"]))
        self.addresses += [str(values[name]) for name in ("href", "src") if values.get(name)]
        self.inline += [f"{tag} {name}" for name in values if name.startswith("on") or name == "style"]
        self._in_script = tag == "script"
        if tag == "style":
            self.inline.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.inline.append("script")


def read_links(path: Path) -> Links:
    """Parse one page."""
    links = Links()
    links.feed(path.read_text(encoding="utf-8"))
    return links
