"""A browser without a screen: Chromium as Qt has it. It opens a page and prints what it shows, once an expression is true.

python page_process.py URL EXPRESSION
"""

from __future__ import annotations

import json
import sys
from typing import Any

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage
from PyQt6.QtWidgets import QApplication


class Page(QWebEnginePage):
    """Keeps what the console says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
        self.said.append(message)


def main(url: str, expression: str) -> None:
    application = QApplication(sys.argv[:1])
    page = Page()

    def ask() -> None:
        page.runJavaScript(expression, answered)

    def answered(found: Any) -> None:
        if found:
            print(json.dumps({"seen": found, "console": page.said}), flush=True)
            application.quit()
        else:
            QTimer.singleShot(50, ask)

    page.loadFinished.connect(lambda is_loaded: ask() if is_loaded else application.exit(1))
    page.load(QUrl(url))
    sys.exit(application.exec())


if __name__ == "__main__":
    main(*sys.argv[1:])
