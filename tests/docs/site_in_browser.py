"""A browser without a screen: Chromium as Qt has it. It opens the pages of a site and prints what it saw as JSON.

    python site_in_browser.py ADDRESS WORD PAGE...

Each page is laid out at two widths. On the first one a word is searched, and its first block of code is copied.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import (
    QWebEnginePage,
    QWebEngineProfile,
    QWebEngineSettings,
    QWebEngineUrlRequestInterceptor,
)
from PyQt6.QtWebEngineWidgets import QWebEngineView
from PyQt6.QtWidgets import QApplication

WIDTHS = (1440, 390)
#: Of a page that is laid out at a width: its version and title, how far it is too wide, and pictures that are not there.
LAYOUT = """innerWidth != WIDTH || document.readyState != "complete" || !document.querySelector(".md-version") ? null : {
    version: document.querySelector(".md-version__current").textContent.trim(),
    title: document.querySelector("h1").textContent,
    overflow: document.documentElement.scrollWidth - document.documentElement.clientWidth,
    lost: [...document.images].filter((one) => !one.naturalWidth).map((one) => one.src),
}"""
#: Opens the search, which has a shadow root of its own, writes the word, and returns where the results lead.
SEARCH = """(() => {
    const root = [...document.body.children].find((one) => one.shadowRoot)?.shadowRoot;
    const field = root?.querySelector("input");
    if (!field) {
        document.querySelector(".md-search__button").click();
    } else if (field.value != "WORD") {
        field.value = "WORD";
        field.dispatchEvent(new InputEvent("input", {bubbles: true, composed: true}));
    } else if (root.querySelector("a")) {
        return [...root.querySelectorAll("a")].map((one) => one.href);
    }
    return null;
})()"""
#: Presses the button beside the first block, and returns the text of the block.
COPY = """(() => {
    const button = document.querySelector("[data-md-type=copy]");
    button.click();
    return document.querySelector(button.dataset.clipboardTarget).textContent;
})()"""


class Requests(QWebEngineUrlRequestInterceptor):
    """Keeps the addresses that are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def interceptRequest(self, info: Any) -> None:
        self.urls.append(info.requestUrl().toString())


class Page(QWebEnginePage):
    """Keeps the errors that the console shows."""

    def __init__(self, profile: QWebEngineProfile) -> None:
        super().__init__(profile)
        self.errors: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
        if level == QWebEnginePage.JavaScriptConsoleMessageLevel.ErrorMessageLevel:
            self.errors.append(f"{source}:{line}: {message}")


def main(address: str, word: str, names: list[str]) -> None:
    application = QApplication(sys.argv[:1])
    profile, requests = QWebEngineProfile(), Requests()
    profile.setUrlRequestInterceptor(requests)
    page = Page(profile)
    # A program presses the button; without this only a person may.
    page.settings().setAttribute(QWebEngineSettings.WebAttribute.JavascriptCanAccessClipboard, True)
    view = QWebEngineView()
    view.setPage(page)
    view.show()
    seen: dict[str, Any] = {"pages": {name: [] for name in names}}

    def ask(program: str, answer: Any) -> None:
        """Run a program until it returns something, then give it to a function."""

        def answered(found: Any) -> None:
            if found is None:
                QTimer.singleShot(20, lambda: ask(program, answer))
            else:
                answer(found)

        page.runJavaScript(program, answered)

    left = iter(names)

    def open_next() -> None:
        name = next(left, None)
        if name is None:
            print(json.dumps(seen | {"errors": page.errors, "requests": requests.urls}), flush=True)
            application.quit()
            return
        view.resize(WIDTHS[0], 900)
        page.loadFinished.connect(lambda: lay_out(name, [*WIDTHS]))
        page.load(QUrl(f"{address}/{name}"))

    def lay_out(name: str, widths: list[int]) -> None:
        if len(widths) == len(WIDTHS):
            page.loadFinished.disconnect()
        if widths:
            view.resize(widths[0], 900)

            def laid_out(found: Any) -> None:
                seen["pages"][name].append(found)
                lay_out(name, widths[1:])

            ask(LAYOUT.replace("WIDTH", str(widths[0])), laid_out)
        elif name == names[0]:
            ask(SEARCH.replace("WORD", word), found)
        else:
            open_next()

    def found(results: list[str]) -> None:
        seen["results"] = results
        ask(COPY, copied)

    def copied(block: str) -> None:
        seen["block"], seen["clipboard"] = block, ""

        def look() -> None:
            seen["clipboard"] = QApplication.clipboard().text()
            if seen["clipboard"]:
                open_next()
            else:
                QTimer.singleShot(20, look)

        look()

    open_next()
    sys.exit(application.exec())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
