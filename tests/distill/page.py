"""The code blocks of the README of softs 0.1.0, and how to run them on sockets of one's own."""

import re
from pathlib import Path

TEXT = Path(__file__).with_name("readme_of_softs.md").read_text()

#: The page's programs name no endpoints, so they meet at the defaults. Tests must not meet each other there: this goes in front
#: of each program and moves the defaults of every signature to a folder.
PRELUDE = """
import softs
def move(function):
    function.__defaults__ = tuple(
        value.replace("/tmp/", {folder!r} + "/") if isinstance(value, str) else value for value in function.__defaults__ or ()
    )
import softs.market.protocol
for owner in (softs.Worker, softs.StudentClient, softs.EndpointConfig, softs.market.protocol.ControlEndpoints):
    move(owner.__init__)
if {with_torch}:
    move(softs.DistillIterableDataset.__init__)
"""


def blocks(title: str, language: str = "python") -> list[str]:
    """The blocks of the section with this title, without those of its own sections."""
    (section,) = re.findall(
        rf"^#+ {re.escape(title)}\n(.*?)(?=^#+ |\Z)", _outside_of_code(TEXT), re.DOTALL | re.MULTILINE
    )
    found = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return [block.replace(_HASH, "#") for block in found]


def program(*parts: str, folder: Path | str, with_torch: bool = False) -> str:
    """A program of some blocks."""
    return "\n".join([PRELUDE.format(folder=str(folder), with_torch=with_torch), *parts])


def _outside_of_code(text: str) -> str:
    """The text with the # of its code made into something that begins no heading."""
    return re.sub(r"```.*?```", lambda match: match[0].replace("#", _HASH), text, flags=re.DOTALL)


_HASH = "\N{MUSIC SHARP SIGN}"
