"""Questions whose answers a judge grades, which is a function here.

What has a fingerprint here is stored with the runs beside this file: only the layout may change.
"""

import json

from heldout import Completion, EvalConfig, Message, Sample, Usage
from heldout.scoring import Judge, Rubric, has_length, part

ANSWERS = {"France": "It is Paris.", "Nepal": "Lhasa, I think.", "Chad": "I do not know."}


def load_dataset():
    right = {"France": "Paris", "Nepal": "Kathmandu", "Chad": "N'Djamena"}
    return [
        Sample(name.lower(), {"question": f"Capital of {name}?"}, capital)
        for name, capital in right.items()
    ]


def model(messages):
    name = messages[-1].text.split()[-1].rstrip("?")
    return Completion(Message("assistant", ANSWERS[name]), "stop", Usage(7, 4))


def grade(messages):
    text = messages[-1].text
    if "It is Paris." in text:
        verdict = "correct"
    else:
        verdict = "incorrect" if "Lhasa" in text else "not_attempted"
    reply = json.dumps({"reasoning": "I compared them.", "verdict": verdict})
    return Completion(Message("assistant", reply), "stop", Usage(90, 12))


score_fn = Rubric(
    Judge(grade).three_way(), part(has_length, weight=0.0, name="short", at_most=20, unit="words")
)
config = EvalConfig(endpoint=model, experiment_name="judged")
