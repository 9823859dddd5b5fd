"""The types of an eval as the reward types of a training loop.

A small policy learns which of two numbers is larger, by policy gradient with group-relative
advantages (as in GRPO). One score function serves twice: as the reward of every rollout, and on
held-out questions before and after, with error bars.

    python examples/train_with_scores.py
"""

import asyncio
import random
import tempfile
from collections import defaultdict
from dataclasses import replace
from itertools import product

import torch

from heldout import (
    EvalReport,
    Message,
    Metric,
    Sample,
    Score,
    Trajectory,
    base_config,
    evaluate,
)

NUMBERS = range(10)
ROLLOUTS = 8


def make_samples() -> tuple[list[Sample], list[Sample]]:
    """Eighty questions to train on, and twenty held out."""
    samples = [
        Sample(f"{a}-{b}", {"question": f"{a} or {b}?", "pair": [a, b]}, max(a, b))
        for a, b in product(NUMBERS, NUMBERS)
    ]
    random.Random(0).shuffle(samples)
    return samples[:80], samples[80:]


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    answer = int(trajectory.answer)
    return Score(
        (
            Metric("correct", answer == sample.ground_truth, weight=1.0),
            Metric("off_by", abs(answer - sample.ground_truth)),  # tracked, not rewarded
        )
    )


class Policy(torch.nn.Module):
    """Two numbers in, a distribution over ten answers out."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        )

    def forward(self, samples: list[Sample]) -> torch.distributions.Categorical:
        pairs = torch.tensor([s.input["pair"] for s in samples])
        # "At least k", for every k: an encoding in which larger can be learnt from few examples.
        thermometer = (pairs.unsqueeze(-1) >= torch.arange(10)).float().flatten(1)
        return torch.distributions.Categorical(logits=self.net(thermometer))


def rollout(sample: Sample, answer: int) -> Trajectory:
    question = Message("user", sample.input["question"])
    return Trajectory((question, Message("assistant", str(answer))))


def training_step(
    policy: Policy, optimizer: torch.optim.Optimizer, samples: list[Sample]
) -> dict[str, float]:
    """One update from scored rollouts; returns the mean of the reward and of every metric."""
    distribution = policy(samples)
    answers = distribution.sample((ROLLOUTS,))
    scores = [
        [score_fn(rollout(sample, int(a)), sample) for a, sample in zip(row, samples, strict=True)]
        for row in answers
    ]
    rewards = torch.tensor([[score.reward for score in row] for row in scores])
    # Against the other rollouts of the same question: what is good is what beats its group.
    advantages = (rewards - rewards.mean(0)) / (rewards.std(0) + 1e-6)
    loss = -(advantages * distribution.log_prob(answers)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

    logged = defaultdict(list)
    for row in scores:
        for score in row:
            logged["reward"].append(score.reward)
            for metric in score.metrics:
                logged[metric.name].append(metric.value)
    return {name: sum(values) / len(values) for name, values in logged.items()}


def held_out_eval(policy: Policy, samples: list[Sample], output_dir: str, name: str) -> EvalReport:
    """The policy, greedy, on questions it was not trained on."""

    async def answer(messages: list[Message]) -> str:
        sample = by_question[messages[-1].text]
        with torch.no_grad():
            return str(int(policy([sample]).probs.argmax()))

    by_question = {s.input["question"]: s for s in samples}
    config = replace(base_config, endpoint=answer, output_dir=output_dir, experiment_name=name)
    return asyncio.run(evaluate(samples, config, score_fn))


def main(steps: int = 150, output_dir: str | None = None) -> tuple[EvalReport, EvalReport]:
    torch.manual_seed(0)
    output_dir = output_dir or tempfile.mkdtemp(prefix="heldout-")
    train, held_out = make_samples()
    policy = Policy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.01)
    before = held_out_eval(policy, held_out, output_dir, "before")
    for step in range(1, steps + 1):
        logged = training_step(policy, optimizer, train)
        if step % 25 == 0:
            print(f"step {step:4}  " + "  ".join(f"{k} {v:.3f}" for k, v in logged.items()))
    after = held_out_eval(policy, held_out, output_dir, "after")
    for name, report in (("before", before), ("after", after)):
        s = report.summary
        print(
            f"held out, {name:6}: mean {s['mean']:.3f} "
            f"[{s['ci_low']:.3f}, {s['ci_high']:.3f}] over {s['n']}"
        )
    return before, after


if __name__ == "__main__":
    main()
