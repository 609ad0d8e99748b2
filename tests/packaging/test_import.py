"""What `import softs_fast` does, and what it does not."""

import re
import subprocess
import sys

import pytest

import softs_fast


def run(program: str) -> str:
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\n"


def test_import_is_light_and_has_no_side_effects() -> None:
    program = """
import sys, threading, logging
import softs_fast
heavy = {"torch", "numpy", "yaml", "msgpack", "msgspec", "zmq", "softs"} & sys.modules.keys()
print(sorted(heavy), threading.active_count(), logging.getLogger().handlers)
"""
    assert run(program) == "[] 1 []\n"


def test_names_that_need_torch_are_loaded_when_touched() -> None:
    program = """
import sys, softs_fast
assert "torch" not in sys.modules
assert "SoftDataLoader" in dir(softs_fast)
assert softs_fast.SoftDataLoader.__module__ == "softs_fast.loader.soft_loader"
assert "torch" in sys.modules
from softs_fast.dataset import SoftDataLoader
assert SoftDataLoader is softs_fast.SoftDataLoader
"""
    run(program)


def test_configs_and_market_work_without_torch() -> None:
    program = """
from softs_fast import BatchConfig, Broker, Client, Supplier
config = BatchConfig.from_dict({"specs": [{"name": "x", "shape": [3, 2], "dtype": "bfloat16"}]})
print(config.nbytes(), config.get_offset("x"))
"""
    assert run(WITHOUT_TORCH + program) == "12 0\n"


@pytest.mark.parametrize(
    "use",
    [
        "softs_fast.SoftDataLoader",
        "softs_fast.make_xy_config((1,), 'int8', (1,), 'int8').decode(bytes(2))",
        "softs_fast.TensorSpec('x', (1,), 'int8').torch_dtype",
        "softs_fast.TensorSpec('x', (1,), 'int8').encode(None)",
    ],
)
def test_without_torch_the_error_names_the_remedy(use: str) -> None:
    program = f"""
import softs_fast
try:
    {use}
except ImportError as error:
    print(error)
"""
    assert "pip install 'softs-fast[torch]'" in run(WITHOUT_TORCH + program)


def test_version() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", softs_fast.__version__)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="module 'softs_fast' has no attribute 'Teacher'"):
        _ = softs_fast.Teacher  # type: ignore[attr-defined]
