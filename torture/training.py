"""A small training run with evals on the way, which goes on from its checkpoints after a kill."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from heldout import Sample, Trajectory
from heldout.training import (
    AsyncEvalDispatcher,
    EvalWorker,
    PeriodicEval,
    SnapshotPool,
    current_points,
    from_functions,
    read_points,
)
from heldout.training.background.dispatcher import pending_evals
from heldout.vector.training import EvalEvery

STEPS, EVERY, SAMPLES = 12, 3, 8
STEP_SECONDS, PROMPT_SECONDS = 0.01, 0.002
WAYS = ("inline", "in the background", "in a worker", "of an agent")
BEGUN = "training has begun"
OUT = Path("outputs/evals/training")


def score(trajectory: Trajectory, sample: Sample) -> bool:
    return bool(trajectory.answer == sample.ground_truth)


def generate(model: Any, prompts: list[Any], max_new: int) -> list[str]:
    """Slow enough that a kill meets an eval."""
    time.sleep(PROMPT_SECONDS * len(prompts))
    with torch.no_grad():
        return [str(round(model(torch.tensor([float(p)])).item())) for p in prompts]


def policy() -> Any:
    """Called in the worker: the model, and how it is run."""
    return torch.nn.Linear(1, 1), runner()


def runner() -> Any:
    return from_functions(lambda messages: messages[-1].text, generate, score)


def prepare() -> None:
    Path("worker_policy.py").write_text(Path(__file__).read_text())


def train(way: str) -> None:
    """Train, from the last checkpoint on if there is one."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2) if way == "of an agent" else torch.nn.Linear(1, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    if way == "of an agent":
        _train_agent(model, optimizer)
        return
    samples = [Sample(f"n{i}", {"question": str(i)}, str(2 * i)) for i in range(SAMPLES)]
    with contextlib.ExitStack() as stack:
        how: dict[str, Any] = {}
        if way == "in a worker":
            worker = EvalWorker("worker_policy.py:policy", snapshots=4)
            how = {"worker": stack.enter_context(worker)}
        elif way == "in the background":
            how = {"snapshots": SnapshotPool(size=4)}
        evals = PeriodicEval(
            samples,
            None if "worker" in how else runner(),
            every_steps=EVERY,
            model_getter=lambda: model,
            run_dir=OUT,
            resume=True,
            at_start=True,
            **how,
        )
        for pending in pending_evals(OUT) if OUT.exists() else ():
            if pending.saved_at and Path(pending.saved_at).exists():
                model.load_state_dict(torch.load(pending.saved_at, weights_only=True)["model"])
                evals.finish(pending, model)
        step, place = _load(model, optimizer)
        if way != "inline":
            stack.enter_context(AsyncEvalDispatcher(when_full="wait"))
        if way == "in a worker":
            evals.maybe_run(step, saved_at=place)
        print(BEGUN, flush=True)
        evals.maybe_run(step, saved_at=place)
        while step < STEPS:
            step += 1
            _step(model, optimizer)
            place = _save(step, model, optimizer)
            evals.maybe_run(step, saved_at=place)
        evals.run_final(step)


def _train_agent(model: Any, optimizer: Any) -> None:
    import gymnasium

    def act(observations: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(observations)).argmax(-1).numpy()

    evals = EvalEvery(
        EVERY,
        lambda: gymnasium.make("CartPole-v1"),
        act,
        episodes=6,
        num_envs=2,
        max_steps=40,
        model=model,
        at_start=True,
        run_dir=OUT,
        resume=OUT.exists(),
    )
    step, _ = _load(model, optimizer)
    print(BEGUN, flush=True)
    evals.maybe_run(step)
    while step < STEPS:
        step += 1
        loss = (model(torch.randn(8, 4)) - torch.randn(8, 2)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        _save(step, model, optimizer)
        evals.maybe_run(step)
    evals.run_final(step)


def _step(model: Any, optimizer: Any) -> None:
    time.sleep(STEP_SECONDS)
    x = torch.rand(8, 1)
    loss = (model(x) - 2 * x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


# --- Checkpoints --------------------------------------------------------------------------------


def _checkpoints() -> Path:
    return Path(os.environ.get("TORTURE_CHECKPOINTS", "checkpoints"))


def _save(step: int, model: Any, optimizer: Any) -> Path:
    """Save a checkpoint, whole or not at all."""
    folder = _checkpoints()
    folder.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
    torch.save({**state, "random": torch.get_rng_state()}, folder / "unfinished")
    return (folder / "unfinished").rename(folder / f"{step:06}.pt").absolute()


def _load(model: Any, optimizer: Any) -> tuple[int, Path]:
    saved = sorted(_checkpoints().glob("*.pt"))
    if not saved:
        return 0, _save(0, model, optimizer)
    state = torch.load(saved[-1], weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    return int(state["step"]), saved[-1].absolute()


def marks() -> list[str]:
    """Whether evals were in flight when it was killed."""
    is_in_flight = (OUT / "curve.jsonl").exists() and pending_evals(OUT)
    return ["with evals in flight"] if is_in_flight else []


def facts() -> dict[str, Any]:
    """The weights that training ended in, and the curve."""
    state = torch.load(Path("checkpoints", f"{STEPS:06}.pt"), weights_only=True)
    weights = b"".join(tensor.numpy().tobytes() for tensor in state["model"].values())
    points = current_points(read_points(OUT / "curve.jsonl"))
    info = json.loads((OUT / "run.json").read_text())
    return {
        "keys": {
            str(p.step): sum(q.step == p.step for q in points) for p in points if p.has_result
        },
        "weights": hashlib.sha256(weights).hexdigest(),
        "points": [
            [p.step, p.weights, p.reward, p.n, [[o.id, o.reward] for o in p.outcomes], p.skipped]
            for p in points
        ],
        "status": info["status"],
    }
