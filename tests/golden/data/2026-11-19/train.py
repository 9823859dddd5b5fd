"""A training run whose evals are a curve: killed, resumed, with errors and skips.

    python train.py killed     trains to step 55 and kills itself there with SIGKILL
    python train.py resumed    goes on from step 40 to the end, with other weights than before
    python train.py remote     evals in the background by a dispatcher alone, and another kill
    python train.py agent      an agent's curve
    python train.py continued  goes on with both curves, and prints what came of it

What has a fingerprint here is stored with the curves beside this file: only the layout may change.
"""

import json
import os
import random
import signal
import sys
import threading
from pathlib import Path

import gymnasium
import numpy as np
import torch

from heldout import Metric, Sample, Score
from heldout.errors import ResumeMismatch
from heldout.training import AsyncEvalDispatcher, CurveMonitor, PeriodicEval, from_functions
from heldout.vector import EvalEvery

RUNS = Path("outputs/evals")
BROKEN = (30,)


def held_out():
    parities = ("even", "odd")
    return [
        Sample(f"n{i:02d}", {"question": f"{i}"}, f"{i * i}", {"parity": parities[i % 2]})
        for i in range(10)
    ]


def prompt_of(messages):
    return messages[-1].text


def skill_at(step):
    return step / 60 if step < 80 else 0.1


def generate(model, prompts, max_new):
    step = round(model.weight.item() * 100)
    if step in BROKEN:
        raise RuntimeError("the engine is gone")
    turns, asked = [], {}
    for prompt in prompts:
        asked[prompt] = attempt = asked.get(prompt, -1) + 1
        n = int(prompt)
        luck = random.Random(repr((n, attempt, step // 20))).random()
        if step == 20 and n == 7:
            turns.append(ValueError("no reply"))
        elif 0.5 * luck + n / 20 < skill_at(step):
            turns.append(f"<think>{n} by {n}</think>{n * n}")
        else:
            turns.append(f"{n * n + 1}")
    return turns


def score(trajectory, sample):
    right = trajectory.answer == sample.ground_truth
    return Score((Metric("right", right, weight=1.0), Metric("digits", len(trajectory.answer))))


model = torch.nn.Linear(1, 1)


def learn(step, bias=0.5):
    """Set weights that are the same on every machine."""
    with torch.no_grad():
        model.weight.fill_(step / 100)
        model.bias.fill_(bias)


beats = []


def beat(name, fields):
    if "eval_reward" in fields:
        reused = bool(fields.get("eval_reused"))
        beats.append([name, fields["step"], fields["eval_reward"], reused])


def make_evals(*, resume=None, samples=10):
    return PeriodicEval(
        held_out()[:samples],
        from_functions(prompt_of, generate, score, max_new=8, repeats=2),
        every_steps=10,
        model_getter=lambda: model,
        label="squares",
        run_dir=RUNS / "squares",
        at_start=True,
        resume=resume,
        heartbeat_fn=beat,
        monitor=CurveMonitor(effect=0.2, window=4),
    )


def push(observations):
    return (observations[:, 2] > model.bias.item() - 0.5).astype(np.int64)


def stood(info, terminated, truncated, ret, steps):
    return truncated


def make_agent_evals(*, resume=None):
    return EvalEvery(
        10,
        lambda: gymnasium.make("CartPole-v1"),
        push,
        5,
        num_envs=2,
        max_steps=45,
        success=stood,
        model=model,
        at_start=True,
        run_dir=RUNS / "cartpole-curve",
        resume=resume,
        heartbeat_fn=beat,
    )


def train(evals, first, last, bias=0.5):
    for step in range(first, last + 1):
        learn(step, bias)
        evals.maybe_run(step)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def main(part):
    if part == "killed":
        train(make_evals(), 0, 55)
        kill()
    elif part == "resumed":
        evals = make_evals(resume=True)
        learn(40)
        evals.begin(40)
        train(evals, 40, 40)
        train(evals, 41, 115, bias=0.25)
        evals.run_final(115)
    elif part == "remote":
        begun = threading.Event()

        def hang():
            begun.set()
            threading.Event().wait()

        dispatcher = AsyncEvalDispatcher(run_dir=RUNS / "remote")
        with dispatcher:
            for step in (5, 10):
                dispatcher.schedule(lambda step=step: {"accuracy": step / 20}, step=step)
            dispatcher.drain()
            dispatcher.schedule(lambda: 1 / 0, step=15)
            dispatcher.drain()
            dispatcher.schedule(hang, step=20, weights="abc", saved_at="checkpoints/20")
            begun.wait()
            kill()
    elif part == "agent":
        evals = make_agent_evals()
        train(evals, 0, 10)
        evals.run_final(10)
    elif part == "continued":
        try:
            make_evals(resume=True, samples=9)
            refused = None
        except ResumeMismatch as problem:
            refused = type(problem).__name__
        evals, agent = make_evals(resume=True), make_agent_evals(resume=True)
        learn(110, bias=0.25)
        evals.begin(110)
        train(evals, 110, 120, bias=0.25)
        learn(10)
        agent.begin(10)
        train(agent, 10, 20)
        print(json.dumps({"refused": refused, "beats": beats}))


if __name__ == "__main__":
    main(sys.argv[1])
