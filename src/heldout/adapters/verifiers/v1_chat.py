"""The `null` harness of verifiers in this process: the same chat loop, without a program to start.

The package's own runs one Python program per rollout, which `uv` installs from the network. Its
requests are the same; what a tool server answers, or what is wrong with a call, reaches the model
in the same words.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null import NullHarness
from verifiers.v1.harnesses.utils.compaction import bound_tool_message
from verifiers.v1.harnesses.utils.mcp import call_mcp, connect_mcp
from verifiers.v1.runtimes import ProgramResult

CONNECT_SECONDS = 60.0
"""How long the tool servers may take to list their tools; as in the package."""

CallTool = Callable[[str, dict[str, Any]], Awaitable[Any]]
Post = Callable[[dict[str, Any]], Awaitable[httpx.Response]]


class ChatHarness(NullHarness):  # type: ignore[misc]
    """Asks the model until it answers without a tool call."""

    SUPPORTS_TOOL_INTERCEPTION = False  # for rewrites, which are refused

    async def setup(self, runtime: Any) -> None:
        """Install nothing."""

    async def launch(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: Any,
    ) -> Any:
        """Run the loop on the task's prompt."""
        async with AsyncExitStack() as stack:
            tools: list[Any] = []
            dispatch: dict[str, Any] = {}
            servers: dict[str, Any] = {}
            if mcp_urls:
                seconds = self.config.tool_timeout
                specs = {name: {"url": url, "timeout": seconds} for name, url in mcp_urls.items()}
                connecting = connect_mcp({"mcpServers": specs}, stack)
                tools, dispatch, servers = await asyncio.wait_for(connecting, CONNECT_SECONDS)

            async def call_tool(name: str, arguments: dict[str, Any]) -> Any:
                if name not in dispatch:
                    return f"error: unknown tool {name!r}"
                return await call_mcp(servers, dispatch, name, arguments)

            body = {"model": ctx.model, "messages": self._opening(data)}
            if tools:
                body["tools"] = tools
            post = await stack.enter_async_context(model_requests(endpoint, secret))
            return await _converse(post, body, call_tool)

    def _opening(self, data: Any) -> list[dict[str, Any]]:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        if isinstance(prompt, str):
            return [*messages, {"role": "user", "content": prompt}] if prompt else messages
        return [*messages, *(message_to_wire(message) for message in prompt or ())]


@asynccontextmanager
async def model_requests(endpoint: str, secret: str) -> AsyncIterator[Post]:
    """Open what sends a harness's model calls to the interception server, on loopback.

    Args:
        endpoint: The server's address for this rollout.
        secret: Its key, which says which rollout it is.
    """
    # Plain HTTP to this machine: no proxy, and no certificates, which take longest to load.
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {secret}"}, verify=False, trust_env=False, timeout=None
    ) as client:

        async def post(body: dict[str, Any]) -> httpx.Response:
            return await client.post(f"{endpoint}/chat/completions", json=body)

        yield post


async def _converse(post: Post, body: dict[str, Any], call_tool: CallTool) -> Any:
    messages = body["messages"]
    while True:
        response = await post(body)
        if response.status_code != httpx.codes.OK:
            # Whether that is an end or a failure is written in the trace.
            return ProgramResult(1, "", response.text[-2000:])
        message = response.json()["choices"][0]["message"]
        messages.append({key: value for key, value in message.items() if value is not None})
        if not message.get("tool_calls"):
            return ProgramResult(0, "", "")
        for call in message["tool_calls"]:
            messages.append(await _answer_call(call, call_tool))


async def _answer_call(call: dict[str, Any], call_tool: CallTool) -> dict[str, Any]:
    name = call["function"]["name"]
    try:
        arguments = json.loads(call["function"]["arguments"] or "{}")
    except json.JSONDecodeError as problem:
        content: Any = (
            f"error: invalid JSON in tool arguments ({problem}); resend the call with valid JSON"
        )
    else:
        if isinstance(arguments, dict):
            content = await call_tool(name, arguments)
        else:
            content = (
                f"error: tool arguments must be a JSON object, got {type(arguments).__name__}; "
                "resend as an object"
            )
    answer = {"role": "tool", "tool_call_id": call["id"], "content": content, "name": name}
    return bound_tool_message(answer)  # type: ignore[no-any-return]
