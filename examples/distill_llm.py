"""Distil a language model layer by layer, over softs-fast.

    python examples/distill_llm.py                      # everything, from one command

or each part in a terminal of its own:

    python examples/distill_llm.py mode=broker
    python examples/distill_llm.py mode=worker device.worker_gpu=0
    torchrun --nproc_per_node=2 examples/distill_llm.py mode=student

For each layer of the teacher, the leader of the students calls set_model("layer_K"). Workers then run the teacher
up to that layer and no further, and send the hidden states that it takes and returns, in bfloat16. A smaller layer
learns to do the same. Settings: examples/conf/distill_llm.yaml; resume=true goes on from the last checkpoint.
What it needs comes with the extra: pip install 'softs-fast[examples]'.
"""

import argparse
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import hydra
import torch
import torch.distributed as dist
from hydra.errors import HydraException
from omegaconf import DictConfig
from tqdm import tqdm

import softs_fast as sf
from llm_checkpoint import Checkpoint, LayerResult
from llm_report import draw, table
from llm_student import Batch, Trainer, device_of_rank
from llm_teacher import find_model, make_teacher, read_layout

#: Longer than a worker takes to load its teacher.
SUPPLY_TIMEOUT_S = 120.0


def main() -> int:
    """Run the part that `mode` names; returns the exit code, 130 after Ctrl-C."""
    cfg = read_settings()
    modes: dict[str, Callable[[DictConfig], None]] = {
        "all": run_all,
        "broker": run_broker,
        "worker": run_worker,
        "student": run_student,
    }
    if cfg.mode not in modes:
        sys.exit(f"mode={cfg.mode} is unknown; have {', '.join(modes)}")
    for number in (signal.SIGINT, signal.SIGTERM):  # torchrun sends the latter when another rank has failed
        signal.signal(number, signal.default_int_handler)
    sf.setup_logging(cfg.log_level)
    torch.set_num_threads(cfg.device.threads)
    try:
        modes[cfg.mode](cfg)
    except KeyboardInterrupt:
        print("\ninterrupted: workers and broker stopped, shared memory freed", file=sys.stderr)
        return 130
    return 0


def read_settings() -> DictConfig:
    """Return the settings of conf/distill_llm.yaml with those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="see conf/distill_llm.yaml")
    options = parser.parse_args()
    # Not with hydra.main: up to Hydra 1.3.8 it fails under Python 3.14.
    with hydra.initialize_config_dir(str(Path(__file__).with_name("conf").absolute()), version_base="1.3"):
        try:
            return hydra.compose("distill_llm", options.settings)
        except HydraException as error:
            sys.exit(str(error))


def run_all(cfg: DictConfig) -> None:
    """Run broker and student in this process, and workers in processes of their own."""
    cfg.endpoint_dir = None
    with sf.Fleet(functools.partial(make_worker, cfg), count=cfg.worker.count) as fleet:
        os.environ.update(fleet.endpoints.as_environment())
        run_student(cfg)


def run_broker(cfg: DictConfig) -> None:
    """Run the broker until it is interrupted."""
    sf.Broker(**endpoints(cfg, "frontend", "backend", "control", "control_pub")).run()


def run_worker(cfg: DictConfig) -> None:
    """Run one worker until the students have finished."""
    make_worker(cfg).run()


def make_worker(cfg: DictConfig) -> sf.Worker:
    """Return a worker with the teacher in memory, which was not started."""
    torch.set_num_threads(cfg.device.threads)
    name = find_model(cfg.teacher.model)
    device = "cpu" if cfg.device.worker_gpu is None else f"cuda:{cfg.device.worker_gpu}"
    teacher = make_teacher(name, read_layout(name, cfg.teacher.max_tokens), cfg.seed, device)
    return teacher.worker(max_batch=cfg.worker.max_batch, **endpoints(cfg, "backend", "control_pub"))


def run_student(cfg: DictConfig) -> None:
    """Train all layers on this rank; the first rank reports, and ends the workers."""
    rank, world = join_ranks()
    with contextlib.ExitStack() as stack:
        if world > 1:
            stack.callback(dist.destroy_process_group)
        name = find_model(cfg.teacher.model)
        layout = read_layout(name, cfg.teacher.max_tokens)
        sample = make_teacher(name, layout, cfg.seed).batch_config
        checkpoint = open_checkpoint(cfg, rank, world)
        client = stack.enter_context(open_client(cfg, rank, sample))

        def switch(layer: int, texts: str, first: int) -> None:
            sf.switch_model(client, f"layer_{layer}", {"layer": layer, "texts": texts, "first": first})

        trainer = Trainer(
            cfg.train,
            cfg.student.shrink,
            cfg.seed,
            layout,
            device_of_rank(),
            switch,
            stack.enter_context(open_batches(cfg, client, rank, sample)),
            checkpoint,
            lambda layer, done: progress(cfg, layer, done, shown=rank == 0),
        )
        n_layers = min(cfg.teacher.layers or layout.n_layers, layout.n_layers)
        while checkpoint.layer < n_layers:
            trainer.train_layer()
        if rank == 0:
            client.stop_workers()
            picture = Path(cfg.output_dir, "loss.png")
            picture.parent.mkdir(parents=True, exist_ok=True)
            draw(checkpoint.results, picture)
            print(table(checkpoint.results))
            print(f"picture: {picture}")


def join_ranks() -> tuple[int, int]:
    """Join the other students that torchrun started; returns this one's rank and how many there are."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return 0, 1
    device = device_of_rank()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size()


def open_checkpoint(cfg: DictConfig, rank: int, world: int) -> Checkpoint:
    """Return where training stands: at the beginning, or with resume=true at the checkpoint in output_dir."""
    path = Path(cfg.output_dir, "checkpoint.pt")
    settings = {**cfg.train, **cfg.teacher, "shrink": cfg.student.shrink, "seed": cfg.seed, "ranks": world}
    # One rank writes: DDP keeps the weights of all of them alike.
    checkpoint = Checkpoint(path if rank == 0 else None, settings)
    if cfg.resume:
        checkpoint.load(path)
        if rank == 0:
            print(f"resumed: layer {checkpoint.layer}, batch {checkpoint.batches_done}")
    return checkpoint


@contextlib.contextmanager
def open_client(cfg: DictConfig, rank: int, sample: sf.BatchConfig) -> Iterator[sf.StudentClient]:
    """Register this rank with the broker; it follows the leader's models until the block ends."""
    client = sf.StudentClient(
        student_rank=rank,
        slot_count=1,  # samples arrive in the slots of the dataset
        batch_config=sample,
        **endpoints(cfg, "frontend", "control", "control_pub"),
    )
    with client:
        client.hello()
        if rank != 0:
            client.start_sub_listener()
        yield client


@contextlib.contextmanager
def open_batches(
    cfg: DictConfig, client: sf.StudentClient, rank: int, sample: sf.BatchConfig
) -> Iterator[Iterator[Batch]]:
    """Yield the endless batches of this rank, those of the model that is set at the time."""
    dataset = sf.DistillIterableDataset(
        student_rank=rank,
        generation_value=client.generation_value,
        slot_count=cfg.train.prefetch_batches * cfg.train.batch_size,
        batch_config=sample,
        request_timeout=SUPPLY_TIMEOUT_S,
        ordered=True,
        **endpoints(cfg, "frontend"),
    )
    with contextlib.closing(dataset):
        yield iter(sf.DistillDataLoader(dataset, batch_size=cfg.train.batch_size))


@contextlib.contextmanager
def progress(cfg: DictConfig, layer: int, done: int, shown: bool) -> Iterator[Callable[[LayerResult], None]]:
    """Show a bar for the training of one layer."""
    bar = tqdm(
        total=cfg.train.batches,
        initial=done,
        desc=f"layer {layer}",
        unit="batch",
        ncols=110,
        # A terminal gets a bar that is updated often, a log file a line every few seconds.
        mininterval=0.2 if sys.stderr.isatty() else 5.0,
        disable=not shown,
    )

    def show(result: LayerResult) -> None:
        bar.set_postfix_str(
            f"{result.samples_per_s:,.1f} samples/s, starved {result.starvation:.1%}, loss {result.losses[-1]:.3f}",
            refresh=False,
        )
        bar.update()

    with bar:
        yield show


def endpoints(cfg: DictConfig, *names: str) -> dict[str, Any]:
    """Return the endpoints of the broker as arguments; none where the library's own are meant."""
    if cfg.endpoint_dir is None:
        return {}
    return {f"{name}_endpoint": f"ipc://{cfg.endpoint_dir}/{name}.sock" for name in names}


if __name__ == "__main__":
    sys.exit(main())
