"""Walks along a line, of a model that is a function; it can be held up, and killed meanwhile.

What has a fingerprint here is stored with the runs beside this file: only the layout may change.
"""

import functools
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from heldout import Completion, EvalConfig, Message, Metric, Reply, Sample, Score, Usage
from heldout.environment import make_snapshot, read_snapshot
from heldout.scoring import grade_number

HOLD = Path("hold")
"""While it is there, one answer does not come."""
STEPS = {"left": -1, "right": 1}
BEST = (0, 1)


def load_dataset():
    return [
        Sample(f"to-{goal}", {"goal": goal, "question": f"Go to {goal}."}, goal, {"far": goal > 3})
        for goal in (1, 2, 5, 6)
    ]


@dataclass
class Line:
    """A line to walk along: tells where the policy is, until it says that it has arrived."""

    goal: int
    place: int = 0
    seen: list = field(default_factory=list)
    tools = ()
    env_kind = "golden-line"
    version = "2.3"

    def opening(self):
        return [Message("user", f"You are at {self.place}.")]

    def reply(self, messages):
        word = messages[-1].text.split(",")[0].lower()
        if word == "here":
            return Reply((), True)
        self.seen.append(self.place)
        self.place += STEPS[word]
        return Reply((Message("user", f"You are at {self.place}."),))

    def outcome(self):
        return {"place": self.place, "seen": list(self.seen)}

    def close(self):
        pass

    def snapshot(self):
        return make_snapshot(self, {"place": self.place, "seen": list(self.seen)})

    def restore(self, snapshot):
        state = read_snapshot(self, snapshot)
        self.place, self.seen = state["place"], list(state["seen"])


def environment_factory(sample):
    return Line(sample.input["goal"])


def politely(function):
    @functools.wraps(function)
    async def wrapped(messages):
        return f"{await function(messages)}, please"

    return wrapped


@politely
async def walk(messages):
    goal = int(messages[0].text.split()[-1].rstrip("."))
    place = int(messages[-1].text.split()[-1].rstrip("."))
    if goal == 6 and place == 2:
        while HOLD.exists():
            await anyio.sleep(0.01)
    if goal == 2 and place == 1:
        return "Here"  # it stops too early
    if goal == 5 and place == 3:
        raise ConnectionError("the line is down")
    return "Here" if place == goal else "Right"


async def model(messages):
    text = await walk(messages)
    return Completion(Message("assistant", text), "stop", Usage(4 * len(messages), 3))


def score_fn(trajectory, sample):
    arrived = trajectory.outcome["place"] == sample.ground_truth
    place = trajectory.outcome["place"]
    grade = grade_number(f"Answer: {place}", sample.ground_truth)
    steps = len(trajectory.outcome["seen"])
    return Score(
        (
            Metric("arrived", BEST[arrived], 3.0),
            Metric("agrees", grade.value, 1.0),
            Metric("steps", steps),
        )
    )


config = EvalConfig(
    endpoint=model,
    experiment_name="journey",
    repeats=2,
    max_turns=12,
    max_concurrent=2,
    save_turns=True,
    max_error_rate=0.3,
    retries=0,
)
