"""The last stated answer: what `stated_answer(answer_text(…))` reads. There is no target."""

from __future__ import annotations

from tests.scoring.examples import Example


def _read(answer: str, extracted: str | None, why: str) -> Example:
    return Example(answer, None, extracted, float(extracted is not None), why)


STATED = (
    _read("**Answer:** C", "C", "markdown around the word"),
    _read("**Answer: C**", "C", "markdown around all of it"),
    _read("> ***Final answer*** – _C_", "C", "a dash instead of a colon"),
    _read("Final answer - 42", "42", "a dash with spaces separates"),
    _read("Final answer -42", "-42", "a dash at the number is its sign"),
    _read("Answer: A\nNo, wait.\nAnswer: B", "B", "the last statement counts"),
    _read("The answer to 3 + 4 is 7.", "7", "in a sentence"),
    _read("The answer is Rome. It is a city.", "Rome", "up to the end of the sentence"),
    _read("Answer: St. Louis", "St. Louis", "an abbreviation ends no sentence"),
    _read("## Answer\n\n- 42", "42", "a heading, and a bullet below"),
    _read("So the answer must be 42, not 41.", "42, not 41", "all of the sentence"),
    _read("Answer: 5 p.m. on Monday", "5 p.m. on Monday", "nor do initials"),
    _read("The answer is as follows:\n\n42", "42", "announced, and stated below"),
    _read("Answer:\n1. Paris\n2. Rome", "Paris\nRome", "all of a list, not its first item"),
    _read("| **Answer** | 42 |", "42", "a row of a table"),
    _read("| Answer | Why |\n|---|---|\n| 42 | 6 x 7 |", None, "the head of a table"),
    _read("Answer (in km): 4", "4", "a remark before the colon"),
    _read('The answer to "What is 2 + 2?" is 4.', "4", "the question repeated"),
    _read("Answer: 4\n\nThe answer is easy to see.", "4", "a remark about it is no answer"),
    _read("Answer: 4\n\nThe other answers are wrong.", "4", "nor is one about others"),
    _read("Answer: 4\n\nIf the answer is 5, x is 3.", "4", "nor is what is supposed"),
    _read("Answer: 4\n\nLet me know if this helps!", "4", "more talk behind it"),
    _read(
        "It swings. The answer is simple harmonic motion.", "simple harmonic motion", "no remark"
    ),
    _read("The answer is right", "right", "where there is nothing else, it is no remark"),
    _read("The answer is not B", None, "a denial states nothing"),
    _read("What is the answer?", None, "a question states nothing"),
    _read("The wrong answer is B", None, "somebody else's answer"),
    _read(r"So $\boxed{\frac{1}{2}}$.", r"\frac{1}{2}", "braces inside braces"),
    _read(r"\boxed{x = \boxed{5}}", "5", "a box inside a box"),
    _read(r"\boxed{\{1, 2\}}", r"\{1, 2\}", "escaped braces"),
    _read(r"Put it into \boxed{}. Answer: 3", "3", "an empty box states nothing"),
    _read(r"They boxed a lot \o/", None, "not that kind of box"),
    _read(r"\boxed{5}, no: \boxed{7", None, "the last statement breaks off"),
    _read("<answer> 42 </answer>", "42", "answer tags"),
    _read("<answer>42", "42", "generation stopped at the closing tag"),
    _read("<final_answer>42</final_answer>", "42", "answer tags"),
    _read('{"why": "6 x 7", "answer": "42"}', "42", "a key of JSON"),
    _read('{"answer": "42", "why": "the answer is 6 x 7"}', "42", "the key, not the other keys"),
    _read('{"answer": null}', None, "a key that says there is none"),
    _read("3 + 4 = 7\n#### 7", "7", "four hashes and a number"),
    _read("#### 2. Results", None, "a heading"),
    _read("Answer:\n```python\nx = 1\n```", "x = 1", "code below"),
    _read('Answer: 7\n```python\nprint("Answer:", x)\n```', "7", "a program states nothing"),
    _read("La respuesta correcta es B.", "B", "Spanish"),
    _read("Die Antwort lautet: 12", "12", "German"),
    _read("答案是 C。", "C", "Chinese"),
    _read("【答案】C\n【解析】A 不对", "C", "Chinese, in brackets"),
    _read("Ответ: 42", "42", "Russian"),
    _read("Правильный ответ — 42", "42", "Russian, with a dash"),
    _read("الإجابة الصحيحة هي 42", "42", "Arabic"),
    _read("सही उत्तर (C) है", "(C) है", "Hindi"),
    _read("<think>Answer: A</think>Answer: B", "B", "reasoning is not the answer"),
    _read("<think>Answer: A", None, "reasoning that never ends"),
    _read("`<think>` opens it. Answer: B", "B", "a tag in code is only spoken of"),
    _read("<think>I end with `</think>`. Answer: A", None, "and ends nothing"),
    _read("Answer: A</think>Answer: B", "B", "the template opened the reasoning"),
    _read("[THINK]Answer: A[/THINK]Answer: B", "B", "Magistral's reasoning"),
    _read("◁think▷Answer: A◁/think▷Answer: B", "B", "Kimi's reasoning"),
    _read("<seed:think>Answer: A</seed:think>Answer: B", "B", "Seed's reasoning"),
    _read("<|START_THINKING|>Answer: A<|END_THINKING|>Answer: B", "B", "Command A's reasoning"),
    _read(
        "<|begin_of_thought|>Answer: A<|end_of_thought|><|begin_of_solution|>Answer: B"
        "<|end_of_solution|>",
        "B",
        "Sky-T1's reasoning",
    ),
    _read(
        "<|channel|>analysis<|message|>Answer: A<|end|><|start|>assistant<|channel|>final"
        "<|message|>Answer: B<|return|>",
        "B",
        "gpt-oss's channels",
    ),
    _read("<|channel|>analysis<|message|>Answer: A", None, "gpt-oss without a final channel"),
)
