"""An agent on OpenAI's own client: whole answers and streamed ones, and tools."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import openai

sample = json.load(sys.stdin)
client = openai.OpenAI()
[model] = [model.id for model in client.models.list()]
assert model == os.environ["OPENAI_MODEL"]
schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
tools: Any = [{"type": "function", "function": {"name": "double", "parameters": schema}}]
messages: Any = [
    {"role": "developer", "content": "Use the tool."},
    {"role": "user", "content": [{"type": "text", "text": sample["input"]["question"]}]},
]
first = client.chat.completions.create(model=model, messages=messages, tools=tools)
assert first.usage is not None
assert first.choices[0].finish_reason == "tool_calls"
[call] = first.choices[0].message.tool_calls or []
value = json.loads(call.function.arguments)["a"] * 2  # type: ignore[union-attr]
messages += [
    first.choices[0].message,
    {"role": "tool", "tool_call_id": call.id, "content": str(value)},
]
options: Any = {"include_usage": True}
stream = client.chat.completions.create(
    model=model, messages=messages, tools=tools, stream=True, stream_options=options, max_tokens=9
)
chunks = list(stream)
assert chunks[-1].usage is not None
text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
try:
    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "And now?"}]
    client.chat.completions.create(model=model, messages=messages, tools=tools)
    limit = None
except openai.BadRequestError as problem:
    limit = problem.code
print("some output of its own")
print(json.dumps({"score": float(text == str(value)), "limit": limit, "key": client.api_key}))
