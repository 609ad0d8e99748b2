"""Names and signatures: code written for softs finds what it calls."""

import dataclasses
import importlib
import inspect
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import softs

SUBMODULES = {
    "catcher": ["ModelIOCatcher", "parse_io_spec", "transfer_to_device"],
    "configs": ["BatchConfig", "TensorSpec", "dtype_to_torch", "make_xy_config", "torch_dtype_to_str"],
    "dataset": ["Batch", "SoftDataLoader", "SoftIterableDataset", "make_collate_fn"],
    "market": [
        "Broker",
        "BrokerStats",
        "Client",
        "EndpointConfig",
        "FilesystemMedium",
        "Medium",
        "ShmMedium",
        "Supplier",
        "TCPMedium",
    ],
    "market.broker": ["Broker"],
    "market.client": ["Client"],
    "market.supplier": ["Supplier"],
    "market.protocol": [
        "BrokerStats",
        "ClientCmd",
        "ClientInfo",
        "EndpointConfig",
        "Order",
        "OrderCancel",
        "OrderDone",
        "OrderRequest",
        "OrderState",
        "OrderWork",
        "SupplierCmd",
        "SupplierInfo",
        "decode_payload",
        "encode_payload",
        "make_reply",
        "make_request",
        "parse_request",
    ],
    "market.mediums": ["FilesystemMedium", "Medium", "ShmMedium", "TCPMedium"],
    "market.mediums.base": ["Medium"],
    "market.mediums.filesystem": ["FilesystemMedium"],
    "market.mediums.shm": ["ShmMedium"],
    "market.mediums.tcp": ["TCPMedium"],
}

REQUIRED = inspect.Parameter.empty

CLASSES = {
    "BatchConfig": [
        "decode", "decode_single", "encode", "from_dict", "from_yaml", "get_offset", "get_spec", "nbytes",
        "to_dict",
    ],
    "TensorSpec": ["decode", "encode"],
    "Broker": ["get_stats", "start", "stop"],
    "Client": [
        "cancel", "close", "discard", "get_completed", "get_stats", "hello", "poll_completions",
        "release_slot", "request_sample", "request_slot",
    ],
    "Supplier": ["start", "stop"],
    "EndpointConfig": ["from_yaml"],
    "BrokerStats": [],
    "Batch": ["keys", "release"],
    "SoftIterableDataset": ["set_model"],
    "SoftDataLoader": ["set_model"],
}  # fmt: skip


def test_all_public_names(lib: ModuleType) -> None:
    assert set(softs.__all__) <= set(lib.__all__)
    for name in lib.__all__:
        assert getattr(lib, name) is not None
        assert name in dir(lib)


@pytest.mark.parametrize("module", SUBMODULES)
def test_submodules(sub: Callable[[str], ModuleType], module: str) -> None:
    for name in SUBMODULES[module]:
        assert hasattr(sub(module), name)


def test_star_import(package: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from {package} import *", namespace)
    assert set(softs.__all__) <= namespace.keys()


def _assert_calls_like(ours: object, theirs: object) -> None:
    """Check for the same arguments and defaults; what softs requires may be optional here."""
    for (name, default), (original, softs_default) in zip(_arguments(ours), _arguments(theirs), strict=True):
        assert name == original
        assert softs_default in (default, REQUIRED), name


def _arguments(function: object) -> list[tuple[str, object]]:
    assert callable(function)
    return [
        (parameter.name, parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]


@pytest.mark.parametrize("name", CLASSES)
def test_constructors_take_the_arguments_of_softs(lib: ModuleType, name: str) -> None:
    _assert_calls_like(getattr(lib, name), getattr(softs, name))


@pytest.mark.parametrize("name", CLASSES)
def test_methods_take_the_arguments_of_softs(lib: ModuleType, name: str) -> None:
    for method in CLASSES[name]:
        ours, theirs = (getattr(getattr(module, name), method) for module in (lib, softs))
        _assert_calls_like(ours, theirs)


@pytest.mark.parametrize("name", ["make_collate_fn", "make_xy_config", "setup_logging"])
def test_functions_take_the_arguments_of_softs(lib: ModuleType, name: str) -> None:
    _assert_calls_like(getattr(lib, name), getattr(softs, name))


@pytest.mark.parametrize("name", ["ModelIOCatcher", "parse_io_spec", "transfer_to_device"])
def test_catcher_takes_the_arguments_of_softs(sub: Callable[[str], ModuleType], name: str) -> None:
    theirs = getattr(importlib.import_module("softs.catcher"), name)
    _assert_calls_like(getattr(sub("catcher"), name), theirs)


@pytest.mark.parametrize(
    "name",
    [
        "BrokerStats",
        "ClientInfo",
        "Order",
        "OrderCancel",
        "OrderDone",
        "OrderRequest",
        "OrderWork",
        "SupplierInfo",
    ],
)
def test_dataclasses_have_the_fields_of_softs(sub: Callable[[str], ModuleType], name: str) -> None:
    def fields(module: ModuleType) -> list[tuple[str, object]]:
        # What softs-fast adds cannot be given by position.
        every = dataclasses.fields(getattr(module, name))
        return [(field.name, field.default) for field in every if not field.kw_only]

    assert fields(sub("market.protocol")) == fields(importlib.import_module("softs.market.protocol"))


def test_setup_logging_configures_only_when_called(package: str) -> None:
    program = f"""
import logging, {package}
assert not logging.getLogger().handlers
{package}.setup_logging("warning")
assert logging.getLogger().level == logging.WARNING and len(logging.getLogger().handlers) == 1
logging.getLogger("x").warning("hello")
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stderr.rstrip().endswith("[x] WARNING: hello")
