"""A deterministic policy that heldout and Inspect's own runner both ask, to compare results."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inspect_ai import eval_async
from inspect_ai.model import (
    ChatMessage,
    GenerateConfig,
    Model,
    ModelOutput,
    ModelUsage,
    get_model,
)
from inspect_ai.tool import ToolChoice, ToolInfo

from heldout import Completion, EvalConfig, EvalDefinition, EvalReport, Message, evaluate
from heldout.adapters.inspect.messages import (
    to_heldout_messages,
    to_model_output,
    to_tool_specs,
)
from heldout.types import ToolCall, ToolSpec, Usage

USAGE = Usage(10, 5)  # without it, mockllm would load a tokenizer to count


def digest(*texts: str) -> int:
    return int(hashlib.sha256("\0".join(texts).encode()).hexdigest(), 16)


def fill(schema: dict[str, Any], seed: int) -> Any:
    """A value that a tool's parameter takes."""
    if "enum" in schema:
        return schema["enum"][seed % len(schema["enum"])]
    match schema.get("type"):
        case "integer" | "number":
            return seed % 7
        case "boolean":
            return bool(seed % 2)
        case "array":
            return [fill(schema.get("items", {}), seed)]
        case "object":
            return {}
        case _:
            return ["1", "abc", "user_1"][seed % 3]


def own_name(text: str) -> str:
    """Some tasks tell the model what Inspect calls it."""
    return text.replace("mockllm/policy", "heldout/policy")


def answer(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Completion:
    """Call a tool, or say something: which is a hash of the conversation's words."""
    texts = [f"{m.role}: {own_name(m.text)}" for m in messages if m.role != "assistant"]
    seed = digest(*texts)
    turns = sum(message.role == "assistant" for message in messages)
    if tools and (turns == 0 or (turns < 4 and seed % 4)):
        tool = tools[seed % len(tools)]
        arguments = {
            name: fill(schema, seed // (number + 3))
            for number, (name, schema) in enumerate(tool.parameters.get("properties", {}).items())
        }
        call = ToolCall(f"call{turns}_{seed % 997}", tool.name, json.dumps(arguments))
        return Completion(Message("assistant", "Let me see.", (call,)), "tool_calls", USAGE)
    words = ["ANSWER: A", "ANSWER: B", "ANSWER: yes", "Paris", "No.", "ANSWER: 7", "I refuse."]
    return Completion(Message("assistant", words[seed % len(words)]), "stop", USAGE)


async def endpoint(
    messages: Sequence[Message], *, tools: Sequence[ToolSpec] = (), **_: Any
) -> Completion:
    return answer(messages, tools)


def as_inspect_model(**config: Any) -> Model:
    def outputs(
        input: list[ChatMessage], tools: list[ToolInfo], choice: ToolChoice, config: GenerateConfig
    ) -> ModelOutput:
        turn = answer(to_heldout_messages(input), to_tool_specs(tools))
        return to_model_output(turn, "mockllm/policy", turn.message.text)

    return get_model("mockllm/policy", custom_outputs=outputs, **config)


def as_grader(*verdicts: str) -> Model:
    """A grader whose verdict is a hash of what it reads; a customer says the first, then stops."""

    def outputs(input: list[ChatMessage], *_: Any) -> ModelOutput:
        seed = digest(*(message.text for message in input))
        if "###STOP###" in verdicts:
            seed = int(any(message.role == "user" for message in input[2:]))
        output = ModelOutput.from_content("mockllm/grader", verdicts[seed % len(verdicts)])
        output.usage = ModelUsage(input_tokens=3, output_tokens=1, total_tokens=4)
        return output

    return get_model("mockllm/grader", custom_outputs=outputs)


async def run_here(definition: EvalDefinition, folder: Path, **settings: Any) -> EvalReport:
    config = {"max_concurrent": 8, "max_error_rate": 1, "max_turns": 20, "progress": False}
    return await evaluate(
        definition,
        EvalConfig(
            endpoint=settings.pop("endpoint", endpoint),
            output_dir=str(folder / "heldout"),
            **config | settings,
        ),
    )


async def run_theirs(task: Any, folder: Path, limit: int | None = None, **settings: Any) -> Any:
    """Inspect's own results: scores by sample id."""
    (log,) = await eval_async(
        task,
        model=settings.pop("model", None) or as_inspect_model(),
        limit=limit,
        log_dir=str(folder / "inspect"),
        fail_on_error=False,
        ctl_server=False,
        **settings,
    )
    return log
