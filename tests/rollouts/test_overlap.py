"""Training prompts that are in the held-out set."""

from __future__ import annotations

import random
from typing import Any

import pytest
from datasets import Dataset

from heldout import DataBuffer, Message, Sample
from heldout._core.chat.questions import QUESTION_FIELDS
from heldout._evals.rollout import EvalDefinition
from heldout.errors import InvalidInput
from heldout.rollouts import check_no_overlap
from heldout.rollouts.overlap import HeldOutPrompts
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
        Sample("t", {"question": QUESTION, "number": 3}),
    ],
)
def test_a_prompt_is_the_same_however_it_is_written(prompt: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^1 training sample has "):
        check_no_overlap(["something else", prompt], HELD_OUT)


@pytest.mark.parametrize("field", QUESTION_FIELDS)
def test_a_training_row_is_compared_by_any_field_that_an_eval_would_ask(field: str) -> None:
    row = {field: QUESTION, "solution": "It is 7."}
    for held_out in (HELD_OUT, [Sample("h", {"problem": QUESTION, "answer": "7"})]):
        with pytest.raises(InvalidInput, match="1 training sample has the same prompt"):
            check_no_overlap([row], held_out)


@pytest.mark.parametrize(
    "input",
    [
        {"question": QUESTION, "context": "Take them apart."},
        {"prompt": QUESTION, "problem": "Another text."},
    ],
)
def test_a_held_out_question_is_found_where_prepare_messages_is_needed_to_ask_it(
    input: dict[str, Any],
) -> None:
    with pytest.raises(InvalidInput, match="1 training sample has the same prompt"):
        check_no_overlap([QUESTION], [Sample("h", input)])


@pytest.mark.parametrize(
    "prompt",
    [
        "What is 3 + 5?",
        "",
        [],
        [user(f"{QUESTION} And 4 + 5?")],
        [user("first"), ANSWER, user("go on")],
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
    with pytest.raises(
        InvalidInput,
        match=r"1 training .* same prompt as a held-out sample: '3 \+ 1\?' ",
    ):
        check_no_overlap(["2 + 1?", "3 + 1?"], held_out)


def test_all_are_counted_and_the_first_are_named(caplog: pytest.LogCaptureFixture) -> None:
    held_out = make_samples(20)
    prompts = [str(sample.input["question"]) for sample in held_out]
    said = r"7 .* same prompt as a held-out sample: '.*' \(held out as 's0'\), .*'s4'\) and 2 more"
    with pytest.raises(InvalidInput, match=said):
        check_no_overlap([*prompts[:7], "x"], held_out)
    assert check_no_overlap(prompts[:7], held_out, allow_overlap=True) == 7
    assert "7 training samples have the same prompt" in caplog.text


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
    assert (
        "4 training prompts were not compared with the held-out set: a prompt must be"
        in caplog.text
    )


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
    with pytest.raises(InvalidInput, match="1 training sample has the same prompt"):
        prompts.check_dataset(dataset)
    assert random.getstate() == state


def test_a_dataset_of_rendered_texts_is_compared_with_rendered_prompts() -> None:
    prompts = HeldOutPrompts()
    prompts.add(HELD_OUT, tokenizer=Template())
    assert prompts.find(f"<user>{QUESTION}</user>") == "h"
    assert prompts.find(f"<user>{QUESTION}</user><model>") == "h"
    assert prompts.find(f"<user>{QUESTION}</user><model>It is 7.") == "h"
    assert prompts.find(f"<user>{QUESTION} And 4 + 5?</user><model>It is 7.") is None
    plain = HeldOutPrompts()
    plain.add(HELD_OUT, tokenizer=Plain())
    assert plain.find(f"{QUESTION} And 4 + 5?") is None  # nothing says where a question ends


# --- Columns ------------------------------------------------------------------------------------


class Template:
    """A tokenizer, as far as it renders."""

    chat_template = "…"

    def apply_chat_template(
        self, chat: list[dict[str, Any]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        text = "".join(f"<user>{message['content']}</user>" for message in chat)
        return text + "<model>" * add_generation_prompt


class Plain(Template):
    def apply_chat_template(self, chat: list[dict[str, Any]], **_: Any) -> str:
        return str(chat[-1]["content"])


@pytest.mark.parametrize("column", ["task", "text", "conversations"])
@pytest.mark.parametrize("kind", ["rows", "samples", "dataset", "table"])
def test_text_in_a_column_that_is_not_compared_is_refused_until_it_is_named(
    column: str, kind: str
) -> None:
    held_out = make_samples(100)
    texts: list[Any] = [sample.input["question"] for sample in held_out]
    if column == "conversations":
        texts = [[user(text)] for text in texts]
    rows: list[Any] = [{column: text, "source": "web"} for text in texts]

    def check(columns: list[str] | None, allow_overlap: bool = False) -> int | None:
        if kind in ("dataset", "table"):
            prompts = HeldOutPrompts(columns)
            prompts.add(held_out)
            dataset = Dataset.from_list(rows) if kind == "dataset" else rows
            return prompts.check_dataset(dataset, allow_overlap=allow_overlap)
        train = rows if kind == "rows" else [Sample(f"t{i}", row) for i, row in enumerate(rows)]
        return check_no_overlap(train, held_out, columns=columns, allow_overlap=allow_overlap)

    said = rf"100 training prompts have text in columns that are not compared .*'{column}'"
    with pytest.raises(InvalidInput, match=said):
        check(None)
    with pytest.raises(InvalidInput, match="100 training samples have the same (prompt|input)"):
        check([column])
    assert check([column], allow_overlap=True) == 100
    assert check(["source"]) == 0


def test_one_more_column_does_not_hide_a_held_out_question() -> None:
    def with_source(sample: Sample) -> Sample:
        return Sample(f"train {sample.id}", {**sample.input, "source": "web"})

    held_out = make_samples(10)
    train = [with_source(sample) for sample in held_out]
    with pytest.raises(InvalidInput, match=r"10 training prompts have text .* \('source'\)"):
        DataBuffer(train, held_out=held_out)
    with pytest.raises(InvalidInput, match="10 training samples have the same input"):
        DataBuffer(train, held_out=held_out, columns=["question"])
    both = ["question", "source"]  # named, they are compared: then these are other questions
    assert DataBuffer(train, held_out=held_out, columns=both).position == 0
    numbered = [Sample(s.id, {**h.input, "n": 1}) for s, h in zip(train, held_out, strict=True)]
    with pytest.raises(InvalidInput, match="10 training samples have the same input"):
        DataBuffer(numbered, held_out=held_out)
    # Inputs of the same columns are compared whole: the same question in another context.
    other = Sample("x", {"question": "5?", "source": "book"})
    assert DataBuffer([other], held_out=train).position == 0


def test_several_columns_are_compared_together() -> None:
    held_out = [Sample("h", {"task": "Translate.", "text": "Guten Tag"})]
    rows = [{"task": "Translate.", "text": text} for text in ("Guten Tag", "Gute Nacht")]
    columns = ["task", "text"]
    assert check_no_overlap(rows, held_out, columns=columns, allow_overlap=True) == 1
    assert check_no_overlap(rows, held_out, columns=["task"], allow_overlap=True) == 2
    with pytest.raises(InvalidInput, match="not compared"):
        check_no_overlap(rows, held_out, columns=["question"])
    for wrong in ("text", []):
        with pytest.raises(InvalidInput, match="columns must be a list of names"):
            check_no_overlap(rows, held_out, columns=wrong)


def test_rendered_prompts_are_compared_as_well_as_what_they_are_rendered_from() -> None:
    def ask(sample: Sample) -> list[Message]:
        return [Message("user", f"Answer briefly: {sample.input['question']}")]

    held_out = EvalDefinition(HELD_OUT, lambda trajectory, sample: 1.0, ask)
    rows = [{"question": QUESTION}, {"prompt": f"Answer briefly: {QUESTION}"}]
    assert check_no_overlap(rows, held_out, allow_overlap=True) == 2
    rendered = [{"text": f"<user>Answer briefly: {QUESTION}</user><model>7"}, {"text": "other"}]
    found = check_no_overlap(
        rendered, held_out, columns=["text"], tokenizer=Template(), allow_overlap=True
    )
    assert found == 1


def test_rows_without_text_are_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert check_no_overlap([{"input_ids": [1, 2]}], HELD_OUT) == 0
    assert "1 training prompts were not compared" in caplog.text


@pytest.mark.parametrize("column", ["Problem", "PROMPT", "Question"])
def test_a_question_column_in_capitals_is_compared_and_not_refused(column: str) -> None:
    row = {column: QUESTION, "answer": "7"}
    other = {column: "What is 3 + 5?", "answer": "8"}
    for train in ([row, other], Dataset.from_list([row, other])):
        with pytest.raises(InvalidInput, match=r"1 training sample has the same prompt"):
            check_no_overlap(train, HELD_OUT)
    held_out = [Sample("h", {column: QUESTION}, "7")]
    with pytest.raises(InvalidInput, match=r"1 training sample has the same input"):
        check_no_overlap([Sample("t", {column.lower(): QUESTION}, "7")], held_out)
    assert check_no_overlap([other], held_out) == 0
    prompts = HeldOutPrompts()
    prompts.add(HELD_OUT)
    assert prompts.check_dataset(Dataset.from_list([row]), allow_overlap=True) == 1


TRANSLATE = {"instruction": "Translate to French.", "input": "Good morning"}


def ask_both(sample: Sample) -> list[Message]:
    return [Message("user", f"{sample.input['instruction']}\n\n{sample.input['input']}")]


@pytest.mark.parametrize("prepare_messages", [None, ask_both])
def test_an_instruction_and_its_input_are_compared_together(prepare_messages: Any) -> None:
    prompts = HeldOutPrompts()
    prompts.add([Sample("h", TRANSLATE, "Bonjour")], prepare_messages)
    row = {**TRANSLATE, "output": "Bonjour"}
    assert prompts.find(row) == "h"
    assert prompts.find({"Instruction": row["instruction"], "Input": row["input"]}) == "h"
    assert prompts.find("translate to french. GOOD morning") == "h"
    others = [
        {**row, "input": "Good night"},
        {**row, "input": ""},
        {"instruction": row["instruction"]},
        Sample("t", {**TRANSLATE, "input": "Good night"}),
    ]
    assert [prompts.find(other) for other in others] == [None] * 4
    data = Dataset.from_list([row, others[0]])
    assert prompts.check_dataset(data, allow_overlap=True) == 1
