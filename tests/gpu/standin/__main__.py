"""Runs the tests of the CUDA side where there is no GPU: `python tests/gpu/standin`.

It builds the native module against the stand-in for CUDA (csrc/standin), and runs pytest with it. Arguments are those
of pytest.
"""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
_NO_TEST_MATCHED = 5


def build() -> Path:
    """Compile what has changed; where the module is."""
    sys.path.insert(0, str(REPOSITORY))
    import build_backend

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    # That of the module itself, of which most objects are the same.
    folder = build_backend.kept_folder()
    configure = [
        "cmake",
        "-S",
        REPOSITORY / "csrc",
        "-B",
        folder,
        "-G",
        "Ninja",
        *build_backend.cmake_options(),
    ]
    for command in (configure, ["cmake", "--build", folder, "--target", "standin"]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{done.stdout}{done.stderr}")
    return folder / "standin" / build_backend.MODULE


def main() -> int:
    """Run the tests; pytest's exit status."""
    environment = os.environ | {
        "SOFTS_STANDIN": str(build()),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
    }
    # Those of the command need no device.
    tests = [str(path) for path in HERE.parent.glob("test_*.py")]
    command = [sys.executable, "-m", "pytest", *tests, *sys.argv[1:]]
    status = subprocess.run(command, env=environment, cwd=REPOSITORY, check=False).returncode
    # A choice of tests may have none of these.
    return 0 if status == _NO_TEST_MATCHED and sys.argv[1:] else status


if __name__ == "__main__":
    sys.exit(main())
