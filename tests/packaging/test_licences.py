"""What is linked into the native modules is named with its licence."""

from __future__ import annotations

import re

from wheels import licences


def test_the_licences_are_those_of_the_crates_of_the_lock() -> None:
    text = licences.FILE.read_text()
    named = set(re.findall(rf"^{licences._RULE}\n(.+)\n{licences._RULE}$", text, re.MULTILINE))
    crates = {
        f"{crate['name']} {crate['version']} ({crate['license']})" for crate in licences.linked_crates()
    }
    assert crates
    assert named - {"pybind11 (BSD-3-Clause)"} == crates, "run python -m wheels.licences"
