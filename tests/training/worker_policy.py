"""What an eval worker is given in tests: a network that knows the numbers below its one weight.

What is asked decides what happens in the worker: see `respond`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from heldout.models.batch import Answered, Request
from heldout.training import Runner, live_model
from heldout.types import Metric, Sample, Score, Trajectory
from tests.tiny_model import tiny_model


class Network(torch.nn.Module):
    def __init__(self, knows: float = 0.0) -> None:
        super().__init__()
        self.knows = torch.nn.Parameter(torch.tensor(knows))
        self.base = torch.nn.Linear(3, 3)
        with torch.no_grad():
            self.base.weight.fill_(1.0)
            self.base.bias.fill_(0.5)
        self.base.requires_grad_(False)
        self.register_buffer("seen", torch.zeros(2, dtype=torch.int64))


def score(trajectory: Trajectory, sample: Sample) -> Score:
    if sample.ground_truth == "raises":
        raise ValueError("this cannot be scored")
    right = float(trajectory.answer == sample.ground_truth)
    return Score((Metric("right", right, 1.0), Metric("drawn", random.random())))


def respond(model: Any, text: str, keep_going: Callable[[], bool]) -> Answered:
    match text.split():
        case ["block"]:
            threading.Event().wait()
        case ["until-told"]:
            while keep_going():
                time.sleep(0.01)
            return None
        case ["until", path]:
            while not Path(path).exists():
                time.sleep(0.01)
        case ["exit", code]:
            print("about to leave", file=sys.stderr)
            os._exit(int(code))
        case ["raise"]:
            raise ArithmeticError("this cannot be answered")
        case ["print"]:
            print("x" * 2**20, "\ud800")
        case ["child", path]:
            child = subprocess.Popen(["sh", "-c", "trap '' TERM; exec sleep 600"])
            Path(path).write_text(str(child.pid))
        case ["odd"]:
            return "a\ud800b \u2028 \U0001f600 \x00"
        case ["switch"]:
            torch.manual_seed(5)
            torch.set_float32_matmul_precision("medium")
        case [number] if number.isdigit():
            return number if int(number) < model.knows.item() else "?"
    return text


def builder(model: Any) -> Runner:
    def answer(requests: Sequence[Request], keep_going: Callable[[], bool]) -> Sequence[Answered]:
        return [respond(model, r.messages[-1].text, keep_going) for r in requests]

    return Runner(answer, score, rows=2, max_error_rate=1)


def policy() -> Any:
    return Network(), builder


def tiny() -> Any:
    torch.set_num_threads(1)
    model, tokenizer = tiny_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    return model, live_model(tokenizer, score, max_new=6)


def open_ended() -> tuple[Any, Any]:
    """A policy that says neither how long a turn may be nor how prompts are rendered."""
    model, tokenizer = tiny_model()
    return model, live_model(tokenizer, score)
