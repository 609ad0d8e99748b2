"""Tensors that the package makes lie where it says, whatever default device the program of a user has set."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "python" / "softs_fast"
CONSTRUCTORS = {
    "arange",
    "as_tensor",
    "empty",
    "eye",
    "full",
    "linspace",
    "ones",
    "rand",
    "randn",
    "tensor",
    "zeros",
}


def test_constructors_of_tensors_name_their_device() -> None:
    unnamed = [
        f"{path.relative_to(PACKAGE)}:{call.lineno}"
        for path in PACKAGE.rglob("*.py")
        # A program of its own, which no default device of a user reaches.
        if path.relative_to(PACKAGE).parts[0] != "gpu"
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in CONSTRUCTORS
        and ast.unparse(call.func.value) == "torch"
        and not any(keyword.arg == "device" for keyword in call.keywords)
    ]
    assert unnamed == []
