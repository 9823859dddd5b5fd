"""Run directories to look at: a small shop's assistant before and after training, and others.

Made by the real `evaluate`, `rescore`, `PeriodicEval` and `evaluate_env`, with functions as models,
so that they are the same at every call. The screenshots of the docs show them, too.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from heldout import (
    Completion,
    EvalConfig,
    EvalReport,
    EvalResult,
    Message,
    Metric,
    Sample,
    Sampling,
    Score,
    ToolCall,
    Trajectory,
    evaluate,
    rescore,
)
from heldout.environments import ToolEnvironment
from heldout.scoring import Rubric, grade_number, part
from heldout.store.journal import JournalWriter
from heldout.store.run_dir import RunDir, RunInfo
from heldout.training import AsyncEvalDispatcher, PeriodicEval, from_functions
from heldout.training.curve.points import CurvePoint, CurveWriter, ItemOutcome, verdict_line
from heldout.types import Usage

ITEMS = {
    "lamp": 40, "chair": 85, "desk": 240, "shelf": 120, "rug": 65, "mirror": 55, "stool": 35,
    "sofa": 620, "bench": 150, "clock": 28, "vase": 18, "mattress": 410, "wardrobe": 530,
}  # fmt: skip
TOPICS = ("price", "discount", "delivery", "refund")
LEVELS = ("easy", "medium", "hard")


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on the parts alone."""
    return random.Random(repr(parts)).random()


def make_questions(n: int) -> list[Sample]:
    samples = []
    for i in range(n):
        draw = random.Random(i)
        item, topic, level = draw.choice([*ITEMS]), TOPICS[i % 4], LEVELS[i * 7 % 3]
        many = draw.randint(2, 29)
        off = {"easy": 0, "medium": 10, "hard": draw.choice((15, 35))}[level]
        question = {
            "price": f"How much are {many} {item}s together?",
            "discount": f"I buy {many} {item}s. What do I pay?",
            "delivery": f"What do {many} {item}s cost, delivered to my door?",
            "refund": f"I return {many} {item}s. How much do I get back?",
        }[topic]
        if off:
            question += f" I have a code for {off}% off."
        total = ITEMS[item] * many * (100 - off) / 100 + (12 if topic == "delivery" else 0)
        samples.append(
            Sample(
                f"{topic}-{i:03d}",
                {"question": question, "item": item, "many": many, "off": off, "topic": topic},
                f"{total:g}",
                {"topic": topic, "level": level, "items": many},
            )
        )
    return samples


def prepare(sample: Sample) -> list[Message]:
    return [
        Message(
            "system",
            "You are the assistant of a furniture shop. Look prices up; end with `Answer: N`.",
        ),
        Message("user", sample.input["question"]),
    ]


def look_up(item: str) -> float:
    """Look up the price of an item.

    Args:
        item: Its name, in the singular.
    """
    return ITEMS[item]


def make_shop(sample: Sample) -> ToolEnvironment:
    return ToolEnvironment([look_up], in_threads=False)


def make_policy(skill: float, name: str = "policy") -> Callable[[Sequence[Message]], Completion]:
    """A policy that is right so often, less often where it is hard; it reasons and calls a tool."""

    def policy(messages: Sequence[Message]) -> Completion:
        question = next(m.text for m in messages if m.role == "user")
        item = next(name for name in ITEMS if name in question)
        luck = chance("q", question)
        if luck < 0.03 and skill < 0.7:
            raise ConnectionError("the server closed the connection after 3 tries")
        if messages[-1].role != "tool":
            arguments = json.dumps({"item": item}) if luck > 0.06 else '{"item": "' + item
            call = ToolCall("call_1", "look_up", arguments)
            thought = f"The customer asks about the {item}. I should look up the price first."
            message = Message("assistant", "", tool_calls=(call,), reasoning=thought)
            return Completion(message, "tool_calls", Usage(180 + len(question), 24))
        words = question.split()
        many = next((int(w) for w in words if w.isdigit()), 1)
        off = next((int(w.rstrip("%")) for w in words if w.endswith("%")), 0)
        delivery = 12 if "delivered" in question else 0
        right = ITEMS[item] * many * (100 - off) / 100 + delivery
        level = 0.0 if off == 0 else 0.12 if off == 10 else 0.3
        own = 0.35 * chance(skill, question)
        knows = 0.65 * chance("skill", question) + own < skill - level
        said = right if knows else ITEMS[item] * many + (0 if off else 5)
        text = (
            f"One {item} is ${ITEMS[item]}. For {many} that is **${ITEMS[item] * many}**"
            + (f", and {off}% off leaves ${said:g}" if off else "")
            + (
                f".\n\n| item | price |\n|---|---:|\n| {item} × {many} | {said:g} |"
                if luck > 0.8
                else "."
            )
        )
        if luck > 0.96:
            return Completion(Message("assistant", text), "length", Usage(230 + len(question), 256))
        usage = Usage(230 + len(question), 40 + int(60 * luck))
        return Completion(Message("assistant", f"{text}\n\nAnswer: {said:g}"), "stop", usage)

    policy.__qualname__ = name
    return policy


def is_brief(trajectory: Trajectory, sample: Sample) -> float:
    return float(len(trajectory.answer.split()) <= 25)


score_shop = Rubric(part(grade_number, name="correct"), part(is_brief, weight=0.0, name="brief"))


def run_eval(
    folder: Path,
    name: str,
    samples: Sequence[Sample],
    policy: Callable[..., Any],
    score_fn: Callable[..., Any] = score_shop,
    **settings: Any,
) -> EvalReport:
    config = EvalConfig(
        endpoint=policy,
        experiment_name=name,
        output_dir=str(folder),
        max_concurrent=1,
        progress=False,
        **settings,
    )
    return asyncio.run(
        evaluate(samples, config, score_fn, settings.pop("prepare", prepare), make_shop)
    )


def make_shop_runs(folder: Path, n: int = 240) -> None:
    """`shop-base` and `shop-tuned`: the same questions before and after training."""
    samples = make_questions(n)
    sampling = Sampling(temperature=0.0, max_tokens=256)
    run_eval(
        folder, "shop-base", samples, make_policy(0.62, "base-1b"), sampling=sampling, max_turns=4
    )
    run_eval(
        folder, "shop-tuned", samples, make_policy(0.8, "tuned-1b"), sampling=sampling, max_turns=4
    )


def make_repeated(folder: Path) -> None:
    """`arithmetic`: four attempts at each of forty sums."""
    samples = [
        Sample(f"sum-{i:02d}", {"prompt": f"{i * 17 % 90} + {i * 31 % 70} = ?"},
               str(i * 17 % 90 + i * 31 % 70), {"carries": bool(i % 3)})
        for i in range(40)
    ]  # fmt: skip
    tries: dict[str, int] = {}

    def policy(messages: Sequence[Message]) -> str:
        text = messages[-1].text
        tries[text] = tries.get(text, 0) + 1
        left, right = int(text.split()[0]), int(text.split()[2])
        wrong = chance(text, tries[text]) > 0.3 + 0.6 * chance(text)
        return f"Let me add them.\n\nAnswer: {left + right + (10 if wrong else 0)}"

    policy.__qualname__ = "adder"
    config = EvalConfig(
        endpoint=policy, experiment_name="arithmetic", output_dir=str(folder), repeats=4,
        max_concurrent=1, progress=False,
    )  # fmt: skip
    asyncio.run(evaluate(samples, config, Rubric(part(grade_number, name="correct"))))


def score_strictly(trajectory: Trajectory, sample: Sample) -> Score:
    last = trajectory.answer.strip().splitlines()[-1:] or [""]
    right = last[0] == f"Answer: {sample.ground_truth}"
    metadata = {"extracted": last[0] or None, "note": "the whole last line has to match"}
    return Score((Metric("strict", right, 1.0, metadata),))


def make_rescored(folder: Path) -> None:
    """`shop-base-strict`: the trajectories of `shop-base`, scored by another function."""
    config = EvalConfig(
        endpoint=make_policy(0.62, "base-1b"),
        experiment_name="shop-base-strict",
        output_dir=str(folder),
        progress=False,
    )
    asyncio.run(rescore(folder / "shop-base", score_strictly, config))


class Learner:
    """What a training run makes of a policy: its skill at a step."""

    def __init__(self) -> None:
        self.step = 0

    @property
    def skill(self) -> float:
        return 0.25 + 0.6 * (1 - 0.5 ** (self.step / 80))


def answer_all(model: Learner, prompts: list[str], max_new: int) -> list[Any]:
    answers = []
    for prompt in prompts:
        item = next(name for name in ITEMS if name in prompt)
        many = next((int(w) for w in prompt.split() if w.isdigit()), 1)
        off = next((int(w.rstrip("%")) for w in prompt.split() if w.endswith("%")), 0)
        delivery = 12 if "delivered" in prompt else 0
        right = ITEMS[item] * many * (100 - off) / 100 + delivery
        if chance(prompt, "error") < 0.04 and model.step == 120:
            answers.append(ValueError("the reward server did not answer"))
        elif 0.85 * chance(prompt) + 0.15 * chance(prompt, model.step) < model.skill:
            answers.append(f"{many} × ${ITEMS[item]}, {off}% off.\n\nAnswer: {right:g}")
        else:
            answers.append(f"I think {many} {item}s are ${ITEMS[item] * many + 5}.")
    return answers


def make_curve(
    folder: Path,
    steps: int = 400,
    *,
    every: int = 20,
    samples: int = 96,
    name: str = "grpo-shop",
    ahead: int = 0,
) -> PeriodicEval:
    """`grpo-shop`: a held-out curve with its conversations; `ahead` has it learn earlier."""
    model = Learner()
    evals = PeriodicEval(
        make_questions(samples),
        from_functions(lambda messages: messages[-1].text, answer_all, score_shop,
                       prepare_messages=prepare),
        every_steps=every,
        model_getter=lambda: model,
        run_dir=folder / name,
        at_start=True,
        heartbeat_fn=lambda name, fields: None,
    )  # fmt: skip
    for step in range(steps + 1):
        model.step = step + ahead
        evals.maybe_run(step)
    return evals


def make_two_evals(folder: Path) -> None:
    """A curve of two evals, of which the first by name improves, and the other regresses.

    Their conversations are saved, but for those of step 10. A second attempt resumed at step 20.
    """
    run = RunDir(folder / "two-evals")
    run.path.mkdir()
    writer = CurveWriter(run.curve)
    kinds = {"math": "improving", "safety": "regressing"}
    for step, passed in ((0, (1, 3)), (10, (2, 2)), (20, (3, 1))):
        for (label, kind), n in zip(kinds.items(), passed, strict=True):
            summary = {"n": 4, "n_errors": 0, "mean": n / 4, "pass_rate": n / 4}
            name = f"{step:08d}" + "-2" * (label == "safety")
            if step != 10:
                results = [
                    EvalResult(f"{label}-{i}", Sample(f"{label}-{i}", {"question": f"{i}?"}, "yes"),
                               Trajectory((Message("assistant", "yes" if i < n else "no"),)),
                               Score((Metric("m", float(i < n), 1.0),)))
                    for i in range(4)
                ]  # fmt: skip
                save_results(run.path / "steps" / name, results)
            # Of the second one as of an eval in the background: its verdict is a line of its own.
            point = CurvePoint(
                label=label,
                step=step,
                session="a" if step < 20 else "b",
                run=f"steps/{name}",
                time="2026-01-01T00:00:00Z",
                seconds=1.0,
                summary={**summary, "ci_low": 0.0, "ci_high": 1.0},
                outcomes=tuple(ItemOutcome(f"{label}-{i}", float(i < n)) for i in range(4)),
                asked=4,
                of=4,
                verdict={"kind": kind, "text": f"{kind}: …", "since_start_text": None},
            )
            if label == "math":
                writer.append(point)
            else:
                writer.append(msgspec.structs.replace(point, verdict=None))
                writer.append(verdict_line(point))
    writer.close()
    run.write_info(RunInfo.new({"pass_threshold": 0.5}, {}))


def make_metrics_only(folder: Path) -> None:
    """`metrics-only`: nine evals by a function of the user, with numbers and no rewards."""

    async def measure(step: int) -> dict[str, float]:
        return {"accuracy": step / 100} | ({"late": step / 50} if step > 50 else {})

    with AsyncEvalDispatcher(run_dir=folder / "metrics-only", when_full="wait") as dispatcher:
        for step in range(10, 100, 10):
            dispatcher.schedule(lambda step=step: measure(step), step=step, name="remote")


def make_episodes(folder: Path) -> None:
    """`cartpole`: two hundred episodes, without conversations."""
    import gymnasium
    import numpy as np

    from heldout.vector import evaluate_env

    def policy_fn(observations: Any) -> Any:
        return (observations[:, 2] + 0.25 * observations[:, 3] > 0.01).astype(np.int64)

    def stood(info: Any, terminated: bool, truncated: bool, ret: float, steps: int) -> bool:
        return truncated

    report = evaluate_env(
        lambda: gymnasium.make("CartPole-v1", max_episode_steps=120),
        policy_fn, episodes=60, num_envs=8, seed=0, success=stood,
    )  # fmt: skip
    report.save(folder / "cartpole")


def make_unfinished(folder: Path, n: int = 37, asked: int = 60) -> None:
    """`shop-killed`: a run whose process was killed after 37 of 60 items."""
    run = RunDir(folder / "shop-killed")
    samples = make_questions(asked)[:n]
    run.make()
    source = run_eval(folder / "scratch", "whole", samples, make_policy(0.8), max_turns=4)
    journal = JournalWriter(run.journal)
    for i, result in enumerate(source.results):
        journal.append(i, result)
    journal.close()
    config = {**source.config, "experiment_name": "shop-killed", "output_dir": str(folder)}
    run.write_info(RunInfo.new(config, {}, asked=asked))
    for file in (folder / "scratch" / "whole").iterdir():
        file.unlink()
    (folder / "scratch" / "whole").rmdir()
    (folder / "scratch").rmdir()


def make_damaged(folder: Path) -> None:
    """`damaged`: a run.json that is none."""
    (folder / "damaged").mkdir(parents=True)
    (folder / "damaged" / "run.json").write_text("{not json")


def save_results(path: Path, results: Sequence[EvalResult], **config: Any) -> None:
    from heldout.store.columns import summarize_results

    whole = {"experiment_name": path.name, "repeats": 1, **config}
    EvalReport(results, summarize_results(results), whole).save(path)


def make_all(folder: Path) -> None:
    make_shop_runs(folder)
    make_repeated(folder)
    make_rescored(folder)
    make_curve(folder)
    make_episodes(folder)
    make_unfinished(folder)
    make_damaged(folder)


if __name__ == "__main__":
    import sys

    make_all(Path(sys.argv[1]))
