"""A shop whose assistant looks prices up and fills a basket, and now and then fails.

What has a fingerprint here is stored with the runs beside this file: only the layout may change.
"""

import json
import random

from heldout import (
    Completion,
    EvalConfig,
    Message,
    Metric,
    Sample,
    Sampling,
    Score,
    ToolCall,
    Usage,
)
from heldout.environment import make_snapshot, read_snapshot
from heldout.environments import ToolEnvironment
from heldout.scoring import Rubric, grade_includes, grade_number, part

PRICES = {"lamp": 40, "chair": 85, "desk": 240, "rug": 65, "vase": 18, "clock": 28}
LEVELS = ("easy", "medium", "hard")


def load_dataset(n=5):
    samples = []
    for i in range(int(n)):
        item, many, level = [*PRICES][i % 6], 2 + i, LEVELS[i % 3]
        samples.append(
            Sample(
                f"order-{i:02d}",
                {"question": f"I want {many} {item}s, please. What do I pay?"},
                f"{PRICES[item] * many}",
                {"level": level, "item": item, "many": many, "gift": i % 4 == 0},
            )
        )
    return samples


def prepare_messages(sample):
    return [
        Message("system", "Look prices up, fill the basket; end with `Answer: N`."),
        Message("user", sample.input["question"]),
    ]


class Shop(ToolEnvironment):
    """One customer's basket."""

    env_kind = "golden-shop"
    version = "1.2"

    def __init__(self, sample):
        self.basket = {}
        self.budget = sample.metadata["many"] * 1000
        super().__init__([self.look_up, self.put])

    def look_up(self, item: str) -> int:
        """Look up the price of an item.

        Args:
            item: Its name, in the singular.
        """
        return PRICES[item]

    def put(self, item: str, count: int) -> str:
        """Put items into the basket."""
        self.basket[item] = self.basket.get(item, 0) + count
        return f"{sum(self.basket.values())} in the basket"

    def outcome(self):
        return {"basket": dict(self.basket)}

    def snapshot(self):
        return make_snapshot(self, {"basket": dict(self.basket)})

    def restore(self, snapshot):
        self.basket = dict(read_snapshot(self, snapshot)["basket"])


def environment_factory(sample):
    return Shop(sample)


def draw(*parts):
    return random.Random(repr(parts)).random()


class Assistant:
    """A model with a skill, which draws from the seed of the attempt."""

    def __init__(self, name, skill):
        self.name, self.skill = name, skill

    def describe(self):
        return {"kind": "golden", "model": self.name}

    async def close(self):
        pass

    async def complete(self, messages, sampling, tools):
        question = next(m.text for m in messages if m.role == "user")
        words = question.split()
        many, item = int(words[2]), words[3].rstrip("s,")
        luck = draw(question, sampling.seed, len(messages))
        turn = sum(m.role == "assistant" for m in messages)
        used = Usage(40 + 10 * len(messages), 8 + turn)
        if turn == 0:
            if luck > 0.94:
                raise ConnectionError("the server closed the connection")
            call = ToolCall("c1", "look_up", json.dumps({"item": item if luck > 0.1 else "moon"}))
            message = Message("assistant", "", (call,), reasoning=f"What is a {item}?")
            return Completion(message, "tool_calls", used)
        if turn == 1:
            count = many if luck < self.skill + 0.2 else many - 1
            call = ToolCall("c2", "put", json.dumps({"item": item, "count": count}))
            return Completion(Message("assistant", "One moment.", (call,)), "tool_calls", used)
        if turn == 2 and many % 5 == 0:
            call = ToolCall("c3", "put", json.dumps({"item": "vase", "count": 0}))
            return Completion(Message("assistant", "And a vase.", (call,)), "tool_calls", used)
        said = PRICES[item] * many if luck < self.skill else PRICES[item] * many + 5
        if luck > 0.9:
            return Completion(Message("assistant", f"That would be {said} or"), "length", used)
        text = f"<think>{many} times {PRICES[item]}</think>Gladly.\n\nAnswer: {said}"
        return Completion(Message("assistant", text), "stop", used)


LONGEST = 6


def is_brief(trajectory, sample):
    return float(len(trajectory.answer.split()) <= LONGEST)


def is_filled(trajectory, sample):
    if sample.id == "order-03" and trajectory.outcome["basket"]["rug"] != 5:
        raise ValueError("a rug is missing")
    return float(sum(trajectory.outcome["basket"].values()) == sample.metadata["many"])


score_fn = Rubric(
    part(grade_number, name="correct"),
    part(is_filled, weight=0.25, name="filled"),
    part(is_brief, weight=0.0, name="brief"),
)


def strict(trajectory, sample):
    """Another score function, to score the saved answers with."""
    right = trajectory.answer.endswith(f"Answer: {sample.ground_truth}")
    return Score((Metric("strict", right, 1.0), Metric("words", len(trajectory.answer.split()))))


plainly = Rubric(part(grade_includes, name="included"))
"""A ready-made grader alone."""

config = EvalConfig(
    endpoint=Assistant("shop-1", 0.55),
    experiment_name="shop",
    repeats=3,
    max_turns=6,
    max_concurrent=4,
    sampling=Sampling(temperature=0.7, top_p=0.9, max_tokens=64, seed=14),
    max_error_rate=0.3,
    retries=0,
    tags=("golden", "base"),
    note="before training",
    price={"input": 0.5, "output": 2.0},
)
