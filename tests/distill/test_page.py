"""Every code block of the README of softs 0.1.0 runs unchanged under the drop-in."""

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import page
import pytest
import torch
from omegaconf import OmegaConf
from waiting import WATCHDOG_S, eventually

import softs_fast
from softs_fast import mediums
from softs_fast.market.endpoints import EndpointName, variable_of


class Programs:
    """Programs in a folder, in processes of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[str]] = []

    def start(self, name: str, *parts: str, with_torch: bool = False) -> "subprocess.Popen[str]":
        script = self.folder / f"{name}.py"
        script.write_text(page.program(*parts, folder=self.folder, with_torch=with_torch))
        process = subprocess.Popen(
            [sys.executable, "-m", "softs_fast.dropin", str(script)],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **self._endpoints()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        return process

    def _endpoints(self) -> dict[str, str]:
        # Where the page's default paths are in this folder.
        names: tuple[EndpointName, ...] = ("frontend", "backend", "control", "control_pub")
        return {variable_of(name): f"ipc://{self.folder}/softs_{name}.sock" for name in names}

    def end(self, process: "subprocess.Popen[str]", how: int | None) -> str:
        """Wait for the end of a program, after a signal if one is given; what it wrote."""
        if how is not None:
            process.send_signal(how)
        text, _ = process.communicate(timeout=WATCHDOG_S)
        self._running.remove(process)
        assert process.returncode == (0 if how is None else -how), text
        return text

    def kill(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()


@pytest.fixture
def programs(short_path: Path) -> Iterator[Programs]:
    """Programs of the page, unchanged."""
    programs = Programs(short_path)
    yield programs
    programs.kill()


def test_quick_start_and_batch_config(programs: Programs) -> None:
    """Both in one program of those that need torch, which takes seconds to import."""
    (config,) = page.blocks("1. Define your data format with BatchConfig")
    (broker,) = page.blocks("2. Start the broker")
    (worker,) = page.blocks("3. Start worker(s)")
    (student,) = page.blocks("4. Run student training")
    assert "    # Training loop...\n" in student
    training = (
        "    seen = globals().get('seen', 0) + 1\n"
        "    assert x.shape == (3, 224, 224) and y.shape == (1000,) and x.std() > 0.9\n"
        "    if seen == 20:\n        break\n"
    )
    student = student.replace("    # Training loop...\n", training) + "print('trained')\n"
    (block,) = page.blocks("BatchConfig API")
    tensors = (
        "import torch\nhidden_tensor = torch.randn(512, 768).bfloat16(); label_tensor = torch.arange(512)\n"
    )
    checks = (
        "assert config.nbytes() == 790528 == len(data)\n"
        "assert tensors['hidden'].equal(hidden_tensor) and hidden.equal(hidden_tensor)\n"
        "assert config.tensor_names == ['hidden', 'labels'] and config.get_spec('hidden').dtype == 'bfloat16'\n"
        "print('packed')\n"
    )
    running = [programs.start("broker", broker), programs.start("worker", config, worker)]
    trainer = programs.start("student", config, student, tensors, block, checks, with_torch=True)
    text = programs.end(trainer, None)
    assert "trained" in text
    assert "packed" in text
    for process in reversed(running):
        programs.end(process, signal.SIGINT)


def test_yaml_and_hydra(programs: Programs) -> None:
    (block,) = page.blocks("Loading from YAML")
    (text,) = page.blocks("Hydra Integration", "yaml")
    (hydra,) = page.blocks("Hydra Integration")
    content = OmegaConf.create(text)
    OmegaConf.save(OmegaConf.create({"specs": content.batch_config.specs}), programs.folder / "config.yaml")
    OmegaConf.save(content, programs.folder / "hydra.yaml")
    load = "from softs import BatchConfig\n"
    between = (
        "assert config.tensor_names == ['x', 'y']\n"
        "from omegaconf import OmegaConf\ncfg = OmegaConf.load('hydra.yaml')\n"
    )
    after = "assert config == BatchConfig.from_yaml('config.yaml')\n"
    programs.end(programs.start("program", load, block, between, hydra, after), None)


def test_mediums(programs: Programs) -> None:
    (shm,) = page.blocks("Default: SharedMemoryManager")
    (file,) = page.blocks("Custom Mediums")
    create, attach = shm.split("\n# Workers attach")
    between = "student = shm\nrun_id = shm.run_id\n"
    after = "shm.write_slot(15, bytes(1024)); shm.close(); student.close(); student.unlink()\n"
    use = (
        "medium = FileMedium(4, 8, 'slots')\nassert medium.buf_name == 'slots'\n"
        "assert medium.read_slot_tensors(3) == bytes(8)\nmedium.close(); medium.unlink()\n"
    )
    programs.end(
        programs.start("program", create, between, f"# Workers attach{attach}", after, file, use), None
    )


def test_a_broker_in_one_line(programs: Programs) -> None:
    (shell,) = page.blocks("Running with DDP", "bash")
    line = shell.splitlines()[1]
    assert line.startswith('python -c "')
    process = programs.start("line", line.removeprefix('python -c "').removesuffix('"'))
    paths = [
        programs.folder / f"softs_{name}.sock" for name in ("frontend", "backend", "control", "control_pub")
    ]
    eventually(lambda: all(path.exists() for path in paths), "it serves the four endpoints")
    programs.end(process, signal.SIGINT)


REFERENCE = {
    "Broker": softs_fast.Broker,
    "Worker": softs_fast.Worker,
    "StudentClient": softs_fast.StudentClient,
    "DistillIterableDataset": softs_fast.DistillIterableDataset,
}


@pytest.mark.parametrize("name", REFERENCE)
def test_signatures_of_the_reference(name: str) -> None:
    (block,) = page.blocks(name)
    head, _, rest = block.partition("\n)\n")
    # The page writes `...` for the endpoints, and `Value` for multiprocessing's.
    scope: dict[str, Any] = {"Callable": Callable, "BatchConfig": softs_fast.BatchConfig, "Value": Any}
    exec(f"def wanted({head.split('(', 1)[1]}\n): pass", scope)
    wanted = list(inspect.signature(scope["wanted"]).parameters.values())
    have = inspect.signature(REFERENCE[name]).parameters
    if name != "Broker":  # its positional arguments are in test_broker.py
        assert list(have)[: len(wanted)] == [parameter.name for parameter in wanted]
        for parameter in wanted:
            if parameter.default not in (..., parameter.empty):
                assert have[parameter.name].default == parameter.default, parameter
    for parameter in wanted:
        assert parameter.name in have
    for line in rest.splitlines():
        if line.strip():
            attribute = line.split(".")[1].split("(")[0].split()[0]
            assert hasattr(REFERENCE[name], attribute), line


def test_methods_of_the_reference() -> None:
    client = softs_fast.StudentClient
    parameters = inspect.signature(client.request_sample).parameters
    assert parameters["timeout_ms"].default == 1000
    assert list(inspect.signature(client.set_model).parameters) == ["self", "model_id", "model_cfg"]
    assert list(inspect.signature(client.release_slot).parameters) == ["self", "slot_id"]
    assert inspect.signature(softs_fast.setup_logging).parameters["level"].default == 20
    spec = softs_fast.TensorSpec("x", (2,), "float32")
    assert (spec.nbytes, spec.torch_dtype) == (8, torch.float32)
    assert set(mediums.__all__) >= {"Medium", "MediumBase", "SharedMemoryManager"}
