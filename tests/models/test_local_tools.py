"""Tools and a transformers model in this process: told of them, and its calls read.

The model is tiny and random. Where it has to say something, a script chooses its tokens; the
tokenizer, the templates and the decoding are real.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch

import heldout
from heldout import (
    EvalConfig,
    EvalReport,
    Message,
    Metric,
    Sample,
    Sampling,
    Score,
    ToolSpec,
    evaluate,
)
from heldout._live.rendering.chat_templates import describe_tools
from heldout.environment import Reply
from heldout.errors import FatalEndpointError
from heldout.models.local import LocalEndpoint
from heldout.scoring import Rubric, grade_exact
from heldout.training import PeriodicEval, live_model
from heldout.types import Stop, ToolCall, Trajectory
from tests.models.asking import completing
from tests.tiny_model import SPECIAL, TEMPLATE, tiny_model

Run = Callable[..., Any]


ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"x": {"type": "integer"}}})
GREEDY = Sampling(max_tokens=8)
QUESTION = [Message("user", "w1 w2")]

CALL = '<tool_call>{"name":"add","arguments":{"x":1}}</tool_call>'
BROKEN = '<tool_call>{"name":"add","arguments":{x}}</tool_call>'
MISTRAL = '[{"name":"add","arguments":{"x":1}}]'
OWN = "<<add:1>>"
SPOKEN = ["[TOOL_CALLS]", CALL, BROKEN, MISTRAL, OWN, "<think>", "</think>", "STOP"]
SPOKEN += ["[THINK]", "[/THINK]"]

NATIVE = (
    "{% if tools %}TOOLS {{ tools | tojson }} {% endif %}"
    "{% for m in messages %} {{ m.role }} {{ m.content }}"
    "{% for call in m.tool_calls or [] %} CALL {{ call.function.name }}"
    "{% for key, value in call.function.arguments | items %} {{ key }}={{ value }}{% endfor %}"
    "{% endfor %}{% endfor %} assistant"
)
THREE_ROLES = (
    "{% for m in messages %}"
    "{% if m.role not in ['system', 'user', 'assistant'] %}{{ raise_exception('role') }}{% endif %}"
    " {{ m.role }} {{ m.content }}{% endfor %} assistant"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower in two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Scripted:
    """An endpoint over a model that says what it is told to, and the prompts it was given."""

    def __init__(self, template: str = TEMPLATE) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        self.model, _ = tiny_model()
        self.model.config.max_position_embeddings = 4096
        said = self

        class Noting(PreTrainedTokenizerFast):
            def __call__(self, texts: list[str], **settings: Any) -> Any:
                said.prompts.append("".join(texts))  # in parts, each of which is new here
                return super().__call__(texts, **settings)

        words = [*SPECIAL, *SPOKEN]
        words += [f"w{i}" for i in range(64 - len(words))]
        vocabulary = {word: i for i, word in enumerate(words)}
        split = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        split.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        self.tokenizer = Noting(
            tokenizer_object=split,
            bos_token="<s>",
            eos_token="</s>",
            unk_token="<unk>",
            pad_token="<pad>",
            extra_special_tokens=["[TOOL_CALLS]", "[THINK]", "[/THINK]"],
            chat_template=template,
        )
        self.prompts: list[str] = []
        self._script: list[int] = []
        self._vocabulary = vocabulary
        self._sequence: list[int] = []
        # What comes behind a sequence: the same in every pass over it, with a cache or without.
        self._next: dict[tuple[int, ...], int | None] = {}
        self.model.register_forward_hook(self._say, with_kwargs=True)
        self.endpoint = LocalEndpoint(self.model, self.tokenizer, name="tiny", max_batch=1)

    def says(self, *replies: str) -> Scripted:
        for reply in replies:
            self._script += [self._vocabulary[word] for word in f"{reply} </s>".split()]
        self._next.clear()
        return self

    def _say(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        ids, count = kwargs["input_ids"][0].tolist(), 1
        if kwargs["use_cache"]:
            before = kwargs["past_key_values"].get_seq_length() - len(ids)
            ids = self._sequence = self._sequence[:before] + ids
        else:
            count = output.logits.shape[1]
        for place in range(-count, 0):
            sequence = tuple(ids[: len(ids) + place + 1])
            if sequence not in self._next:
                self._next[sequence] = self._script.pop(0) if self._script else None
            if (token := self._next[sequence]) is not None:
                output.logits[:, place] = 0.0
                output.logits[:, place, token] = 1e4

    def asked(
        self,
        messages: Sequence[Message] = QUESTION,
        tools: Sequence[ToolSpec] = (ADD,),
        sampling: Sampling = GREEDY,
    ) -> Callable[[], Any]:
        return completing(self.endpoint, messages, sampling, tools)


# --- What the model is told ---------------------------------------------------------------------


def test_a_template_that_takes_tools_is_given_them(run: Run) -> None:
    scripted = Scripted(NATIVE).says("w5")
    run(scripted.asked())
    [prompt] = scripted.prompts
    assert prompt.startswith("TOOLS [")
    assert json.loads(prompt[6 : prompt.rindex("]") + 1])[0]["function"]["name"] == "add"
    assert describe_tools([ADD]) not in prompt
    scripted = Scripted(NATIVE).says(CALL)
    assert run(scripted.asked(tools=())).message == Message("assistant", CALL)
    assert scripted.prompts == [" user w1 w2 assistant"]


def test_without_a_chat_template_there_is_no_telling_of_tools(run: Run) -> None:
    scripted = Scripted()
    scripted.tokenizer.chat_template = None
    with pytest.raises(FatalEndpointError, match="nor be told of tools"):
        run(scripted.asked())


# --- What it says -------------------------------------------------------------------------------


def test_a_call_is_read_and_the_text_beside_it_kept(run: Run) -> None:
    answer = run(Scripted().says(f"w5 {CALL}").asked())
    assert answer.message == Message(
        "assistant", "w5", tool_calls=(ToolCall("call00000", "add", '{"x": 1}'),)
    )
    assert (answer.finish_reason, answer.usage.completion_tokens) == ("stop", 3)


def test_a_marker_that_is_a_special_token_is_seen_before_it_is_dropped(run: Run) -> None:
    scripted = Scripted().says(f"w5 <s> [TOOL_CALLS] {MISTRAL}")
    assert "[TOOL_CALLS]" in scripted.tokenizer.all_special_tokens
    message = run(scripted.asked()).message
    assert message.tool_calls == (ToolCall("call00000", "add", '{"x": 1}'),)
    assert message.content == "w5"


def test_calls_after_a_stop_text_were_not_made(run: Run) -> None:
    stopping = Sampling(max_tokens=8, stop=("STOP",))
    answer = run(Scripted().says(f"{CALL} STOP {CALL}").asked(sampling=stopping))
    assert len(answer.message.tool_calls) == 1
    assert answer.finish_reason == "stop"
    assert run(Scripted().says(f"w5 STOP {CALL}").asked(sampling=stopping)).message == Message(
        "assistant", "w5 "
    )


@pytest.mark.parametrize(
    ("opens", "said", "answer"),
    [
        ("<think>", "w5 w6", ""),
        ("<think>", "w5 </think> w6", "w6"),
        ("[THINK]", "w5 [/THINK] w6", "w6"),  # special tokens, which are no part of other texts
        ("<think> </think>", "w5 w6", "w5 w6"),
        ("w3", "w5 w6", "w5 w6"),
    ],
)
def test_reasoning_that_the_template_opened_is_no_answer_until_it_is_closed(
    run: Run, opens: str, said: str, answer: str
) -> None:
    scripted = Scripted(f"{TEMPLATE}{{{{ ' {opens}' if add_generation_prompt else '' }}}}")
    for tools in ((), (ADD,)):
        message = run(scripted.says(said).asked(tools=tools)).message
        assert Trajectory((message,)).answer == answer


@pytest.mark.parametrize("said", ["w5", "w5 </think> w5"])
def test_it_is_no_answer_to_a_grader_nor_in_the_middle_of_a_training(
    run: Run, tmp_path: Path, said: str
) -> None:
    scripted = Scripted(TEMPLATE + "{{ ' <think>' if add_generation_prompt else '' }}").says(said)
    samples, rubric = [Sample("a", {"prompt": "w1"}, "w5")], Rubric(grade_exact)
    config = EvalConfig(
        endpoint=scripted.endpoint,
        output_dir=str(tmp_path),
        experiment_name="r1",
        sampling=GREEDY,
        progress=False,
    )

    async def main() -> EvalReport:
        try:
            return await evaluate(samples, config, rubric)
        finally:
            await scripted.endpoint.close()

    expected = float("</think>" in said)
    assert run(main).summary["mean"] == expected
    evals = PeriodicEval(
        samples,
        live_model(scripted.tokenizer, rubric, max_new=8),
        every_steps=1,
        run_dir=tmp_path / "curve",
    )
    scripted.says(said)
    point = evals.run_eval(1, scripted.model)
    assert point.summary["mean"] == expected


RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant",
    "fields": {
        "tool_calls": {
            "open_pattern": r"<<(?P<name>\w+):",
            "close": ">>",
            "repeats": True,
            "content": "json",
            "transform": {"function": {"name": "{name}", "arguments": {"x": "{content}"}}},
        },
        "content": {"close": "</s>", "content": "text"},
    },
}  # fmt: skip


def test_a_convention_of_its_own_is_read_by_the_tokenizer(run: Run) -> None:
    scripted = Scripted().says(f"w5 {OWN}")
    scripted.tokenizer.response_template = RESPONSE_TEMPLATE
    [call] = run(scripted.asked()).message.tool_calls
    assert (call.id, call.name, json.loads(call.arguments)) == ("call00000", "add", {"x": 1})
    for template in (RESPONSE_TEMPLATE, {"fields": "nonsense"}):
        scripted = Scripted().says("w5 w6")
        scripted.tokenizer.response_template = template
        assert run(scripted.asked()).message == Message("assistant", "w5 w6")


# --- In the turn loop ---------------------------------------------------------------------------


class Adder:
    """Answers calls with a word and everything else with a nudge; keeps count."""

    tools = (ADD,)

    def __init__(self) -> None:
        self.calls = 0

    def opening(self) -> list[Message]:
        return []

    def reply(self, messages: Sequence[Message]) -> Reply:
        calls = messages[-1].tool_calls
        self.calls += len(calls)
        results = tuple(Message("tool", "w4", tool_call_id=call.id) for call in calls)
        return Reply(results or (Message("user", "w6"),), done=self.calls >= 2)

    def outcome(self) -> dict[str, Any]:
        return {"calls": self.calls}

    def close(self) -> None:
        pass


def evaluated(endpoint: LocalEndpoint, folder: Path) -> Callable[[], Any]:
    config = EvalConfig(
        endpoint=endpoint,
        experiment_name="run",
        output_dir=str(folder),
        progress=False,
        max_turns=6,
        sampling=GREEDY,
        timeout=60.0,
    )

    def called(trajectory: Trajectory, sample: Sample) -> Score:
        return Score((Metric("calls", trajectory.outcome["calls"], 1.0),))

    async def main() -> EvalReport:
        asked = [Sample("s", {"prompt": "w0"})]
        with anyio.fail_after(120):
            try:
                return await heldout.evaluate(asked, config, called, None, lambda _: Adder())
            finally:
                await endpoint.close()

    return main


@pytest.mark.parametrize("template", [NATIVE, THREE_ROLES])
def test_a_scripted_episode_with_tools_runs_to_its_end(
    run: Run, tmp_path: Path, template: str
) -> None:
    scripted = Scripted(template).says("w5", BROKEN, f"w7 {CALL}")
    [result] = run(evaluated(scripted.endpoint, tmp_path)).results
    assert result.error is None
    assert result.trajectory.stop == Stop("environment", finish_reason="stop")
    assert result.score["calls"] == 2.0
    said = [m for m in result.trajectory.messages if m.role == "assistant"]
    assert [call.id for m in said for call in m.tool_calls] == ["call00000", "call00001"]
