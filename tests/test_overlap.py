"""Training prompts that are in the held-out set."""

from __future__ import annotations

import random
from typing import Any

import pytest
from datasets import Dataset

from heldout import Message, Sample
from heldout.errors import InvalidInput
from heldout.overlap import HeldOutPrompts
from heldout.rollout import EvalDefinition
from heldout.training import check_no_overlap
from tests.conftest import make_samples

QUESTION = "What is 3 + 4?"
HELD_OUT = [Sample("h", {"question": QUESTION}, "7")]
ANSWER = {"role": "assistant", "content": "7"}


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}


@pytest.mark.parametrize(
    "prompt",
    [
        QUESTION,
        "  what IS 3 +\n4? ",
        [user(QUESTION)],
        [SYSTEM, user(QUESTION)],
        [user([{"type": "text", "text": QUESTION}])],
        [user("What is 1 + 1?"), {"role": "assistant", "content": "2"}, user(QUESTION)],
        {"prompt": [user(QUESTION)], "answer": "7"},
        {"messages": [user(QUESTION), ANSWER]},
        {"question": QUESTION, "answer": "7"},
        Sample("t", {"prompt": QUESTION}),
        Sample("t", {"messages": [user(QUESTION)]}),
    ],
)
def test_a_prompt_is_the_same_however_it_is_written(prompt: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^training samples are in the held-out set: 1 with "):
        check_no_overlap(["something else", prompt], HELD_OUT)


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 3 + 5?",
        "",
        [],
        [user(f"{QUESTION} And 4 + 5?")],
        [user("first"), ANSWER, user("go on")],
        Sample("t", {"question": QUESTION, "context": "in base 6"}),
    ],
)
def test_other_prompts_are_not_the_same(prompt: Any) -> None:
    held_out = [
        *HELD_OUT,
        Sample("in parts", {"messages": [user("other"), ANSWER, user("go on")]}),
        Sample("none", {"messages": [user("")]}),
        Sample("picture", {"messages": [user([{"type": "image_url", "image_url": {"url": "a"}}])]}),
    ]
    assert check_no_overlap([prompt], held_out) == 0


def test_held_out_prompts_are_those_that_the_eval_makes() -> None:
    def ask(sample: Sample) -> list[Message]:
        return [Message("system", "Be brief."), Message("user", f"{sample.input['n']} + 1?")]

    held_out = EvalDefinition([Sample("h", {"n": 3})], lambda trajectory, sample: 1.0, ask)
    with pytest.raises(InvalidInput, match=r"1 with the prompt of a held-out one: '3 \+ 1\?' "):
        check_no_overlap(["2 + 1?", "3 + 1?"], held_out)


def test_all_are_counted_and_the_first_are_named(caplog: pytest.LogCaptureFixture) -> None:
    held_out = make_samples(20)
    prompts = [str(sample.input["question"]) for sample in held_out]
    said = r"7 with the prompt of a held-out one: '.*' \(held out as 's0'\), .*'s4'\) and 2 more"
    with pytest.raises(InvalidInput, match=said):
        check_no_overlap([*prompts[:7], "x"], held_out)
    assert check_no_overlap(prompts[:7], held_out, allow_overlap=True) == 7
    assert "7 with the prompt of a held-out one" in caplog.text


@pytest.mark.parametrize(
    ("dataset", "why"),
    [
        (None, "the trainer has no training dataset"),
        (Dataset.from_dict({"prompt": [QUESTION]}).to_iterable_dataset(), "is a stream"),
        (
            Dataset.from_dict({"input_ids": [[1, 2]]}),
            "no messages, prompt or question, only input_ids",
        ),
        (Dataset.from_dict({"prompt": [QUESTION], "images": [["x.png"]]}), "it has images"),
        ([(1, 2)], "its rows are tuples"),
        ({"math": [], "code": []}, "it is a dict of math, code"),
    ],
)
def test_a_dataset_that_cannot_be_compared_is_said_to_be_unchecked(
    dataset: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = HeldOutPrompts()
    prompts.add(HELD_OUT)
    assert prompts.check_dataset(dataset) is None
    assert "was not checked: " in caplog.text
    assert why in caplog.text


def test_prompts_that_cannot_be_read_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    odd = [[{"from": "human"}], [user([{"type": "image"}])], [user(7)], 5]
    assert check_no_overlap(odd, HELD_OUT) == 0
    assert "4 training prompts were not compared with the held-out set: a prompt is" in caplog.text


@pytest.mark.parametrize("in_arrow", [True, False])
def test_a_dataset_is_read_once_and_draws_nothing(in_arrow: bool) -> None:
    class Drawing(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            random.random()
            return super().__getitem__(index)

    rows = [{"prompt": f"{n}?"} for n in range(2500)] + [{"prompt": QUESTION}]
    dataset = Dataset.from_list(rows) if in_arrow else Drawing(rows)
    prompts = HeldOutPrompts()
    prompts.add(HELD_OUT)
    state = random.getstate()
    with pytest.raises(InvalidInput, match="1 with the prompt of a held-out one"):
        prompts.check_dataset(dataset)
    assert random.getstate() == state


def test_a_dataset_of_rendered_texts_is_compared_with_rendered_prompts() -> None:
    prompts = HeldOutPrompts()
    prompts.add(HELD_OUT, render=lambda messages: f"<user>{messages[-1].text}<model>")
    assert prompts.find(f"<user>{QUESTION}<model>") == "h"
