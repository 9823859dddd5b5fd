"""A judge with one slot, for which the others wait."""

import json

import anyio

from heldout import EvalConfig, Sample
from heldout.scoring import Rubric
from heldout.scoring.judges import Judge


async def judge(messages):
    await anyio.sleep(0.05)
    verdict = "different" if "q: 2?" in messages[-1].text else "equal"
    return json.dumps({"reasoning": "so it is", "verdict": verdict})


config = EvalConfig(endpoint=lambda messages: "yes", max_concurrent=3)
score_fn = Rubric(Judge(judge, max_concurrent=1).equality())


def load_dataset():
    return [Sample(f"q{n}", {"question": f"q: {n}?"}, "yes") for n in range(3)]
