"""A browser without a screen, in a process of its own: Chromium as Qt has it. It opens a page and prints what it saw as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

from PyQt6.QtCore import QTimer, QUrl
from PyQt6.QtWebEngineCore import QWebEnginePage
from PyQt6.QtWidgets import QApplication

STATE = """(() => ({
    state: document.getElementById("state").textContent,
    numbers: [...document.querySelectorAll("#numbers dd")].map((one) => one.textContent),
    told: document.getElementById("told").textContent,
    workers: [...document.querySelectorAll("#workers td")].map((one) => one.textContent),
    columns: getComputedStyle(document.querySelector("table")).borderCollapse,
}))()"""
CLICK = """document.querySelector("[data-action=pause]").click()"""
#: Without a screen no question is answered.
KICK = """window.confirm = () => true; document.querySelector("#workers button").click()"""
#: What a policy without a hole refuses: a script in the page, and a request to another origin.
ATTACK = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.effectiveDirective));
const script = document.createElement("script");
script.textContent = "window.isBroken = true";
document.head.appendChild(script);
fetch("http://127.0.0.1:9/").catch(() => {});
"""
VIOLATIONS = "({violations: window.violations, isBroken: window.isBroken === true})"


class Page(QWebEnginePage):
    """Keeps what the console says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def javaScriptConsoleMessage(self, level: Any, message: str, line: int, source: str) -> None:
        self.said.append(message)


def main(url: str) -> None:
    application = QApplication(sys.argv[:1])
    page = Page()
    seen: dict[str, Any] = {}
    steps = iter(
        [
            (STATE, lambda found: found["state"] == "open" and found["workers"], "open"),
            (CLICK, lambda found: True, "click"),
            (STATE, lambda found: found["state"] == "paused" and found["told"], "paused"),
            (KICK, lambda found: True, "kick"),
            (STATE, lambda found: not found["workers"], "kicked"),
            (ATTACK, lambda found: True, "attack"),
            (VIOLATIONS, lambda found: len(found["violations"]) >= 2, "attacked"),
        ]
    )

    def follow() -> None:
        step = next(steps, None)
        if step is None:
            print(json.dumps(seen | {"console": page.said}), flush=True)
            application.quit()
            return
        ask(*step)

    def ask(program: str, is_enough: Any, name: str) -> None:
        if name == "attack":
            seen["console_before"] = list(page.said)

        def answered(found: Any) -> None:
            if is_enough(found):
                seen[name] = found
                follow()
            else:
                QTimer.singleShot(50, lambda: ask(program, is_enough, name))

        page.runJavaScript(program, answered)

    page.loadFinished.connect(lambda is_loaded: follow() if is_loaded else application.exit(1))
    page.load(QUrl(url))
    sys.exit(application.exec())


if __name__ == "__main__":
    main(sys.argv[1])
