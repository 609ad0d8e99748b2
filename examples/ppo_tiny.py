"""PPO with tiny models, as a flow of six functions: synchronous, and with rows that are one step old.

    python examples/ppo_tiny.py
    python examples/ppo_tiny.py --workers 2
    python examples/ppo_tiny.py --workers 4

A prompt is a number; the actor writes six numbers, and is rewarded for each that is the one before it plus one. The
columns of the functions decide what runs when. In one process, rows that are a step old cost nothing and save nothing:
the picture shows that both learn. With --workers, each worker is a process, and generation goes on beside training; with
up to three the synchronous run has the same bits as in one process. With four, actor and generator are on two workers
each: rows are cut between them, and the ranks average their gradients.
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # The imports below take seconds; until main() listens, Ctrl-C ends the process without a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import softs_fast.dataflow as df
from digits_report import HARD, SOFT, STYLE

NUMBERS, LENGTH, WIDTH = 8, 6, 64
ROWS, GROUP = 128, 4
CLIP, GAMMA, LAMBDA, KL_WEIGHT = 0.2, 1.0, 0.95, 0.01
PICTURE = Path("demo-output/ppo_tiny.png")


class Net(nn.Module):
    """Reads the number before each place and the place; returns `n_out` values for each place."""

    def __init__(self, n_out: int) -> None:
        super().__init__()
        self.before = nn.Embedding(NUMBERS, WIDTH)
        self.place = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, n_out))

    def forward(self, before: Tensor) -> Tensor:
        """Return float32 [rows, n, n_out] for int64 [rows, n], the numbers before the first n places."""
        places = torch.arange(before.shape[1])
        return self.layers(self.before(before) + self.place(places))


def before(rows: df.Rows) -> Tensor:
    """Return the number before each place, int64 [rows, LENGTH]."""
    return torch.cat([rows["prompt"][:, None], rows["seq"][:, :-1]], dim=1)


class Actor(df.Role):
    """Writes numbers, and learns from their rewards."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(0)  # all ranks, the reference and the generator begin with the same weights
        self.net = Net(NUMBERS)
        self.mesh = mesh
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)
        self.random = torch.Generator().manual_seed(1 + mesh.rank("dp"))

    @torch.no_grad()
    def generate(self, rows: df.Rows) -> dict[str, Tensor]:
        numbers = rows["prompt"][:, None]
        for place in range(LENGTH):
            shares = F.softmax(self.net(numbers)[:, place], dim=-1)
            numbers = torch.cat([numbers, torch.multinomial(shares, 1, generator=self.random)], dim=1)
        seq = numbers[:, 1:]
        return {"seq": seq, "logp": log_shares(self.net(numbers[:, :-1]), seq)}

    @torch.no_grad()
    def logp(self, rows: df.Rows) -> dict[str, Tensor]:
        return {"logp": log_shares(self.net(before(rows)), rows["seq"])}

    def train(self, rows: df.Rows) -> dict[str, float]:
        advantage, _ = advantages(rows)
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-6)
        for _ in range(4):
            ratio = (log_shares(self.net(before(rows)), rows["seq"]) - rows["old_logp"]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.mesh.average_gradients(self.net, rows.weight)
            self.optimizer.step()
        return {"loss": loss.item(), "reward": rows["reward"].mean().item()}


class Critic(df.Role):
    """Predicts the reward."""

    def setup(self, mesh: df.Mesh) -> None:
        torch.manual_seed(2)
        self.net = Net(1)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=3e-3)

    @torch.no_grad()
    def value(self, rows: df.Rows) -> dict[str, Tensor]:
        return {"value": self.net(before(rows))[..., 0]}

    def train(self, rows: df.Rows) -> dict[str, float]:
        _, returns = advantages(rows)
        for _ in range(4):
            loss = F.mse_loss(self.net(before(rows))[..., 0], returns)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return {"loss": loss.item()}


class Reward(df.Role):
    """Knows the task."""

    def score(self, rows: df.Rows) -> dict[str, Tensor]:
        return {"reward": (rows["seq"] == (before(rows) + 1) % NUMBERS).float().mean(dim=1)}


def log_shares(logits: Tensor, numbers: Tensor) -> Tensor:
    """Return the log-probability of each number, float32 [rows, LENGTH]."""
    return logits.log_softmax(dim=-1).gather(-1, numbers[..., None])[..., 0]


def advantages(rows: df.Rows) -> tuple[Tensor, Tensor]:
    """Return advantages and returns, float32 [rows, LENGTH].

    Source: generalized advantage estimation, Schulman et al., arXiv 1506.02438, equation 16.
    """
    rewards = -KL_WEIGHT * (rows["old_logp"] - rows["ref_logp"])
    rewards[:, -1] += rows["reward"]
    following = torch.cat([rows["value"][:, 1:], torch.zeros(len(rewards), 1)], dim=1)
    delta = rewards + GAMMA * following - rows["value"]
    advantage = torch.zeros_like(delta)
    last = torch.zeros(len(delta))
    for place in reversed(range(LENGTH)):
        advantage[:, place] = last = delta[:, place] + GAMMA * LAMBDA * last
    return advantage, advantage + rows["value"]


def prompts(seed: int) -> Iterator[dict[str, Any]]:
    """Yield prompts without end; each becomes a group of rows."""
    random = torch.Generator().manual_seed(seed)
    while True:
        yield {"prompt": torch.randint(NUMBERS, (), generator=random)}


def make_flow(seed: int, max_age: int, n_workers: int = 2) -> df.Flow:
    """Declare the roles and their functions; each process of the flow calls this."""
    torch.set_num_threads(1)
    if n_workers < 4:
        actor = df.place(Actor)
        gen = df.place(Actor, on=[1 % n_workers], follows=actor, name="gen")
    else:
        actor = df.place(Actor, "dp2", on=[0, 2])
        gen = df.place(Actor, "dp2", on=[1, 3], follows=actor, name="gen")
    ref = df.place(Actor, frozen=True, name="ref")
    critic = df.place(Critic, on=[2 % n_workers])
    reward = df.place(Reward, on=[1 % n_workers])
    batch = "prompt, seq, logp as old_logp, ref_logp, reward, value"
    calls = [
        df.call(gen.generate, "prompt -> seq, logp", rows=32),
        df.call(reward.score, "prompt, seq -> reward", rows=16),
        df.call(ref.logp, "prompt, seq -> logp as ref_logp", rows=64),
        df.call(critic.value, "prompt, seq -> value", rows=64),
        df.call(critic.train, batch, rows=ROWS),
        df.call(actor.train, batch, rows=ROWS, after=[df.publish(gen)]),
    ]
    return df.Flow(calls, source=prompts(seed), group=GROUP, max_age=max_age, digests=True)


def run(seed: int, max_age: int, n_steps: int, n_workers: int) -> list[float]:
    """Train, and return the mean reward of each step; `n_workers` is 0 for one object of each role in one process."""
    arguments = {"seed": seed, "max_age": max_age, "n_workers": n_workers or 2}
    flow = make_flow(**arguments)
    if n_workers:
        flow = df.Flow.in_processes("ppo_tiny:make_flow", arguments)
    rewards = []
    with flow:
        for step in flow.steps(n_steps):
            rewards.append(step["actor.train"]["reward"])
            if step.number % max(n_steps // 5, 1) == 0:
                digest = next(call.digest for call in step.calls if call.function == "actor.train")
                print(
                    f"max_age={max_age} step {step.number:3}: reward {rewards[-1]:.3f}, "
                    f"oldest row {step.age_max} of at most {flow.age_bound} steps, batch {digest}"
                )
    return rewards


def draw(curves: dict[int, list[float]], path: Path) -> None:
    """Draw the rewards."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(8, 4.5), dpi=130, layout="constrained")
        names = {0: "synchronous (max_age=0)", 1: "rows up to one step old (max_age=1)"}
        for (age, rewards), color in zip(curves.items(), (SOFT, HARD), strict=True):
            axes.plot(range(1, len(rewards) + 1), rewards, color=color, label=names[age])
        axes.axhline(1 / NUMBERS, color="#999999", linestyle=":", label="random numbers")
        axes.set(
            title="PPO with tiny models, as a flow of six functions", xlabel="step", ylabel="mean reward"
        )
        axes.set_ylim(0, 1.02)
        axes.legend(loc="lower right")
        figure.savefig(path)
        plt.close(figure)


def main() -> int:
    """Run the example; returns the exit code, 130 after Ctrl-C."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=60, help="of each run, at least 1 (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the prompts (%(default)s)")
    parser.add_argument(
        "--workers", type=int, default=0, help="processes, 1 to 4; 0: all in this one (%(default)s)"
    )
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture (%(default)s)")
    options = parser.parse_args()
    if options.steps < 1:
        parser.error(f"--steps is {options.steps}; need at least 1")
    if not 0 <= options.workers <= 4:
        parser.error(f"--workers is {options.workers}; need 0 to 4")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        curves = {age: run(options.seed, age, options.steps, options.workers) for age in (0, 1)}
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    for age, rewards in curves.items():
        print(f"max_age={age}: reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(curves, options.output)
    print(f"picture: {options.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
