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
from collections.abc import Iterator
from dataclasses import asdict
from operator import add
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
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

import softs_fast as sf
from llm_report import LayerResult, LoaderStats, draw, table
from llm_student import Batch, StudentLayer, relative_error, squared_error
from llm_teacher import Layout, find_model, make_teacher, read_layout

#: Longer than a worker takes to load its teacher.
SUPPLY_TIMEOUT_S = 120.0
#: The learning rate rises over this share of the batches, and falls over the rest.
WARM_UP = 0.1


def main() -> int:
    """Run the part that `mode` names; returns the exit code, 130 after Ctrl-C."""
    cfg = read_settings()
    modes = {"all": run_all, "broker": run_broker, "worker": run_worker, "student": run_student}
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
    with sf.Fleet(functools.partial(make_worker, cfg), n_workers=cfg.worker.count) as fleet:
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
    with contextlib.ExitStack() as stack:
        rank, world = join_ranks(stack)
        name = find_model(cfg.teacher.model)
        layout = read_layout(name, cfg.teacher.max_tokens)
        sample = make_teacher(name, layout, cfg.seed).batch_config
        state = open_state(cfg, world)
        if cfg.resume and rank == 0:
            print(f"resumed: layer {state['layer']}, batch {state['batches_done']}")
        client = sf.StudentClient(
            student_rank=rank,
            slot_count=1,  # samples arrive in the slots of the dataset
            batch_config=sample,
            **endpoints(cfg, "frontend", "control", "control_pub"),
        )
        stack.enter_context(client).hello()
        if rank != 0:
            client.start_sub_listener()
        dataset = sf.DistillIterableDataset(
            student_rank=rank,
            generation_value=client.generation_value,
            slot_count=cfg.train.prefetch_batches * cfg.train.batch_size,
            batch_config=sample,
            request_timeout=SUPPLY_TIMEOUT_S,
            ordered=True,
            **endpoints(cfg, "frontend"),
        )
        loader = sf.DistillDataLoader(dataset, batch_size=cfg.train.batch_size, device=device_of_rank())
        batches = iter(stack.enter_context(loader))
        while state["layer"] < min(cfg.teacher.layers or layout.n_layers, layout.n_layers):
            train_layer(cfg, layout, client, loader, batches, state)
        if rank == 0:
            client.stop_workers()
            picture = Path(cfg.output_dir, "loss.png")
            draw(state["results"], picture)
            print(table(state["results"]))
            print(f"picture: {picture}")


def train_layer(
    cfg: DictConfig,
    layout: Layout,
    client: sf.StudentClient,
    loader: sf.DistillDataLoader,
    batches: Iterator[Batch],
    state: dict[str, Any],
) -> None:
    """Train the layer that the state stands at, to its end."""
    number, done, train = state["layer"], state["batches_done"], cfg.train
    torch.manual_seed(cfg.seed + number)
    layer = StudentLayer(layout, cfg.student.shrink).to(device_of_rank())
    optimizer = torch.optim.AdamW(layer.parameters(), weight_decay=0.0)

    def switch(texts: str, first: int) -> None:
        sf.switch_model(client, f"layer_{number}", {"layer": number, "texts": texts, "first": first})

    switch("held_out", 0)
    held_out = [next(batches)]  # not timed: the workers have just switched
    before = loader.stats
    held_out += [next(batches) for _ in range(train.held_out_batches - 1)]
    teacher_rate = loader.stats.since(before).samples_per_s
    # Before the error is computed: the workers make what is trained on first meanwhile.
    switch("train", done * train.batch_size)
    if done == 0:
        state["results"].append(LayerResult(relative_error(layer, held_out), teacher_rate))
    else:
        layer.load_state_dict(state["student"])
        optimizer.load_state_dict(state["optimizer"])
    result, is_first = state["results"][-1], client.student_rank == 0
    model: nn.Module = DistributedDataParallel(layer) if dist.is_initialized() else layer
    # A terminal gets a bar that is updated often, a log file a line every few seconds.
    interval_s = 0.2 if sys.stderr.isatty() else 5.0
    with tqdm(
        total=train.batches,
        initial=done,
        desc=f"layer {number}",
        unit="batch",
        ncols=110,
        mininterval=interval_s,
        disable=not is_first,
    ) as bar:
        batch, earlier, first = next(batches), result.stats, loader.stats
        for step in range(done, train.batches):
            rise = min(1.0, (step + 1) / (WARM_UP * train.batches))
            optimizer.param_groups[0]["lr"] = train.learning_rate * rise * (1 - step / train.batches)
            result.losses.append(train_step(model, optimizer, batch, train.passes))
            if (step + 1) % train.checkpoint_every == 0 and step + 1 < train.batches and is_first:
                training = {"student": layer.state_dict(), "optimizer": optimizer.state_dict()}
                save_state(cfg, {**state, **training, "batches_done": step + 1})
            if step + 1 < train.batches:
                batch = next(batches)
                result.stats = LoaderStats(*map(add, earlier, loader.stats.since(first)))
            bar.set_postfix_str(
                f"{result.stats.samples_per_s:,.1f} samples/s, starved {result.stats.waiting_share:.1%}, "
                f"loss {result.losses[-1]:.3f}",
                refresh=False,
            )
            bar.update()
    result.error_after = relative_error(layer, held_out)
    state.update(layer=number + 1, batches_done=0, finished=[*state["finished"], layer.state_dict()])
    if is_first:  # DDP keeps the weights of all ranks alike
        save_state(cfg, state)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, passes: int) -> float:
    """Take the steps of one batch; returns the relative squared error before the first."""
    x, losses = batch["x"].float(), []
    for _ in range(passes):
        error, size = squared_error(model(x, batch["mask"]), batch)
        loss = error / size
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0]


def open_state(cfg: DictConfig, world: int) -> dict[str, Any]:
    """Return where training stands: at the beginning, or with resume=true at the checkpoint in output_dir."""
    settings = {**cfg.train, **cfg.teacher, "shrink": cfg.student.shrink, "seed": cfg.seed, "ranks": world}
    path = Path(cfg.output_dir, "checkpoint.pt")
    if not cfg.resume:
        return {"settings": settings, "layer": 0, "batches_done": 0, "results": [], "finished": []}
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}: start without resume=true")
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    changed = [key for key, value in settings.items() if state["settings"].get(key) != value]
    if changed:
        raise ValueError(
            f"{path} was made with other settings of {', '.join(changed)}: use those, or start anew"
        )
    state["results"] = [
        LayerResult(**{**one, "stats": LoaderStats(*one["stats"])}) for one in state["results"]
    ]
    return state


def save_state(cfg: DictConfig, state: dict[str, Any]) -> None:
    """Replace the checkpoint, atomically."""
    path = Path(cfg.output_dir, "checkpoint.pt")
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [{**asdict(one), "stats": tuple(one.stats)} for one in state["results"]]
    torch.save({**state, "results": results}, path.with_suffix(".partial"))
    os.replace(path.with_suffix(".partial"), path)


def join_ranks(stack: contextlib.ExitStack) -> tuple[int, int]:
    """Join the other students that torchrun started; returns this one's rank and how many there are."""
    if int(os.environ.get("WORLD_SIZE", 1)) == 1:
        return 0, 1
    device = device_of_rank()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    stack.callback(dist.destroy_process_group)
    return dist.get_rank(), dist.get_world_size()


def device_of_rank() -> torch.device:
    """Return the GPU of this process's local rank under torchrun, or the processor where there is none."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)) % torch.cuda.device_count())


def endpoints(cfg: DictConfig, *names: str) -> dict[str, Any]:
    """Return the endpoints of the broker as arguments; none where the library's own are meant."""
    if cfg.endpoint_dir is None:
        return {}
    return {f"{name}_endpoint": f"ipc://{cfg.endpoint_dir}/{name}.sock" for name in names}


if __name__ == "__main__":
    sys.exit(main())
