"""Words that the project does not use, each with what to write instead.

The terms themselves are in docs/glossary.md. Patterns match whole words, in any case, within one line.
"""

from __future__ import annotations

import functools
import re

#: In all text, pages included.
EVERYWHERE = {
    r"desks?": "lane scheduler",
    r"ropes?": "remote doorbell",
    r"bells?": "doorbell",
    r"hush(?:es|ed|ing)?": "drain",
    r"crank\w*": "runs one step of the event loop",
    r"mak(?:es?|ing) (?:it|them|itself|the \w+) silent": "drains the pipe, so that the next wait blocks",
    r"asleep": "waits, is blocked",
    r"go(?:es)? home|went home": "exits, returns",
    r"(?:is|are|was|were|be|been) heard": "is received",
    r"in hand": "held",
    r"let(?:s|ting)? go": "releases",
    r"duets?": "the two peers of an exchange",
    r"scribbl\w+": "poison",
    r"whoever|whomever|whosever": "the name of the thing: a peer that ..., the caller",
    r"himself|herself": "itself",
    r"nobody": "no supplier, no peer, none",
    r"somebody": "a peer, another process",
    r"anybody": "a peer, any process",
    r"everybody": "all peers, each process",
}

#: In comments, docstrings and texts of code, where no sentence is about a person.
IN_CODE = {
    r"who": "which, that, or the name of the thing",
    r"whose": "of which, with its",
    r"whom": "which",
    r"he|him": "it, or the name of the thing",
    r"his": "its",
    r"someone|anyone|everyone|no one": "a peer, another process, all, none",
    r"forgets?|forgotten": "drops, removes",
    r"(?:com(?:es?|ing)|came) back": "is released, is returned, reconnects",
    r"turns? the": "runs, performs",
    r"keepers?": "watchdog",
}

#: Parts of names in code.
IN_NAMES = r"who|whose|whom|whoever|himself|nobody|somebody|anybody|everybody|desk|rope|hush|crank|duet"

#: Public names, as they appear in text: an argument in its docstring, a call or quotes.
PUBLIC = re.compile(r"""\bscribble(?=[:=])|(?P<quote>["'`])scribble(?P=quote)""")


def pattern(words: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    """The patterns of whole words, and what to write instead."""
    return [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), instead) for word, instead in words.items()]


def any_of(words: dict[str, str]) -> re.Pattern[str]:
    """The pattern of any of them: a search for it is many times as quick as one for each."""
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


PAGE_WORDS = pattern(EVERYWHERE)
CODE_WORDS = PAGE_WORDS + pattern(IN_CODE)
ANY_IN_PAGE, ANY_IN_CODE = any_of(EVERYWHERE), any_of(EVERYWHERE | IN_CODE)
#: Finds all of them in a text that was not read into prose and names, which takes several times as long, and a few others.
MAY_BE_THERE = re.compile(
    rf"(?:(?<![A-Za-z])|(?<=[a-z0-9])(?=[A-Z]))(?i:{'|'.join([*EVERYWHERE, *IN_CODE, IN_NAMES])})(?![a-z])"
)
NAME_PARTS = re.compile(rf"(?:^|_)({IN_NAMES})(?=_|$)", re.IGNORECASE)
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def in_text(text: str, *, page: bool) -> list[tuple[str, str]]:
    """The unwanted words of one line of prose, each with what to write instead."""
    kept = PUBLIC.sub("", text)
    if not (ANY_IN_PAGE if page else ANY_IN_CODE).search(kept):
        return []
    words = PAGE_WORDS if page else CODE_WORDS
    return [(found.group(), instead) for word, instead in words for found in word.finditer(kept)]


@functools.cache
def in_name(name: str) -> list[tuple[str, str]]:
    """The unwanted parts of one identifier, each with what to write instead."""
    return (
        [(name, "a name in the words of docs/glossary.md")] if NAME_PARTS.search(CAMEL.sub("_", name)) else []
    )
