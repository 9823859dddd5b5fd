"""A transformers model in this process. Requests that wait are answered in one batch.

The model lives in a thread of its own, which takes what has queued up, pads it on the left and
decodes all rows together; a row that is done, or whose item gave up, leaves the batch. Sampled
rows draw from a generator each, so torch's own random state is not touched and an answer does
not depend on who else was in the batch by more than rounding.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import anyio
import anyio.to_thread

from heldout.chat import message_of, tool_to_chat_api
from heldout.concurrency import waker
from heldout.config import Sampling
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, InvalidInput
from heldout.rendering.chat_templates import ChatRenderer
from heldout.toolcalls import call_id, next_call_number
from heldout.types import Completion, Message, ToolSpec, Usage

DEFAULT_MAX_TOKENS = 512
LINGER_SECONDS = 0.01
"""How long a batch that is not full waits for requests that are just being made."""


@dataclass(eq=False, slots=True)
class _Request:
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...]
    ready: anyio.Event
    wake: Callable[[Callable[[], object]], None]
    """Into the event loop that waits for it."""
    cancelled: bool = False
    completion: Completion | None = None
    problem: Exception | None = None


@dataclass(eq=False, slots=True)
class _Row:
    """One sequence of a batch while it is decoded."""

    request: _Request
    prompt: list[int]
    limit: int
    generator: Any
    tokens: list[int] = field(default_factory=list)


class LocalEndpoint:
    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "local", max_batch: int = 16
    ) -> None:
        """For a model that is already in memory; `LocalEndpoint.load` for one on disk."""
        self._name, self._max_batch = name, max_batch
        self._source: str | None = None
        self._model, self._tokenizer = model, tokenizer
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False

    @classmethod
    def load(cls, path: str, *, name: str | None = None, max_batch: int = 16) -> Self:
        """Weights are read with the first request, so a refusal before it costs nothing."""
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as missing:
            raise InvalidInput(
                f"a local model needs torch and transformers ({missing.name} is missing): "
                "pip install 'heldout[local]'"
            ) from None
        endpoint = cls(None, None, name=name or path, max_batch=max_batch)
        endpoint._source = path
        return endpoint

    def describe(self) -> dict[str, Any]:
        return {"kind": "local", "model": self._name, "max_batch": self._max_batch}

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        if self._closing:
            raise EndpointError(f"{self._name} is being closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="heldout-model", daemon=True)
            self._thread.start()
        request = _Request(tuple(messages), sampling, tuple(tools), anyio.Event(), waker())
        self._queue.put(request)
        try:
            await request.ready.wait()
        finally:
            request.cancelled = True  # no effect on one that is done
        if request.problem is not None:
            raise request.problem
        if request.completion is None:
            raise EndpointError(f"{self._name} was closed before it had answered")
        return request.completion

    async def close(self) -> None:
        thread = self._thread
        if thread is None:
            return
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        with anyio.CancelScope(shield=True):  # half closed, it could never be used again
            await anyio.to_thread.run_sync(thread.join)
        if self._thread is thread:
            self._thread, self._closing = None, False

    # --- The model's thread ---

    def _serve(self) -> None:
        while (batch := self._next_batch()) is not None:
            try:
                if not self._closing:
                    self._load()
                    self._answer(batch)
            except Exception as problem:  # noqa: BLE001 - reported to everyone who waits
                for request in batch:
                    if request.completion is None and request.problem is None:
                        request.problem = _as_endpoint_error(problem, self._name)
            for request in batch:
                self._notify(request)

    def _next_batch(self) -> list[_Request] | None:
        first = self._queue.get()
        if first is None:
            return None
        batch, deadline = [first], time.monotonic() + LINGER_SECONDS
        while len(batch) < self._max_batch:
            try:
                more = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            batch.append(more)
        return batch

    def _notify(self, request: _Request) -> None:
        if not request.cancelled and not request.ready.is_set():
            request.wake(request.ready.set)

    def _load(self) -> None:
        if self._model is not None:
            return
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            tokenizer = AutoTokenizer.from_pretrained(self._source)
            model = AutoModelForCausalLM.from_pretrained(self._source, dtype="auto")
            model = model.to(device).eval()
        except Exception as problem:  # noqa: BLE001 - no request can be answered, whatever it is
            first = (str(problem).strip() or type(problem).__name__).splitlines()[0]
            raise FatalEndpointError(f"cannot load a model from {self._source}: {first}") from None
        self._model, self._tokenizer = model, tokenizer

    def _answer(self, batch: list[_Request]) -> None:
        import torch

        rows = []
        for request in batch:
            try:
                rows.append(self._row(request))
            except Exception as problem:  # noqa: BLE001 - chat templates raise what they like
                request.problem = _as_endpoint_error(problem, self._name)
                self._notify(request)
        with torch.inference_mode():
            self._decode([row for row in rows if not row.request.cancelled])

    def _row(self, request: _Request) -> _Row:
        prompt = self._prompt(request.messages, request.tools)
        if not prompt:
            raise EndpointError(f"the prompt has no tokens, so {self._name} has nothing to go on")
        longest = getattr(self._model.config, "max_position_embeddings", None) or 1 << 30
        limit = min(request.sampling.max_tokens or DEFAULT_MAX_TOKENS, longest - len(prompt))
        if limit < 1:
            raise ContextFull(f"the prompt has {len(prompt)} tokens, {self._name} takes {longest}")
        generator = None
        if request.sampling.temperature > 0:
            import torch

            generator = torch.Generator()
            if request.sampling.seed is not None:
                generator.manual_seed(request.sampling.seed)
            else:
                generator.seed()
        return _Row(request, prompt, limit, generator)

    def _prompt(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        if getattr(self._tokenizer, "chat_template", None):
            return self._chat.prompt(messages, tools)
        if len(messages) == 1 and isinstance(messages[0].content, str) and not tools:
            return list(self._tokenizer(messages[0].content)["input_ids"])
        raise FatalEndpointError(
            f"{self._name} has no chat template, so it can continue one message of text but not "
            "a conversation, nor be told of tools"
        )

    @cached_property
    def _chat(self) -> ChatRenderer:
        """The tokenizer's template; only the model's thread has it."""
        return ChatRenderer(self._tokenizer)

    def _decode(self, rows: list[_Row]) -> None:
        """Greedy or sampled decoding of all rows together, one token a step."""
        if not rows:
            return
        import torch
        from transformers import DynamicCache

        model = self._model
        device = model.device
        cache = DynamicCache(config=model.config)
        # What all prompts begin with (the system prompt, usually) is read once for all of them.
        shared = _common_prefix([row.prompt for row in rows]) if len(rows) > 1 else 0
        if shared:
            model(
                input_ids=torch.tensor([rows[0].prompt[:shared]], device=device),
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache.batch_repeat_interleave(len(rows))
        # Then each one's own part, padded on the left; what is masked may hold any token.
        width = max(len(row.prompt) for row in rows) - shared
        own = [row.prompt[shared:] for row in rows]
        ids = torch.tensor([[0] * (width - len(part)) + part for part in own], device=device)
        mask = torch.tensor(
            [[1] * shared + [0] * (width - len(part)) + [1] * len(part) for part in own],
            device=device,
        )
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, shared:]
        ends = self._end_tokens()
        while rows and not self._closing:
            out = model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            chosen = [_choose(out.logits[i, -1].float(), row) for i, row in enumerate(rows)]
            staying = [i for i, row in enumerate(rows) if self._advance(row, chosen[i], ends)]
            if len(staying) < len(rows):
                rows = [rows[i] for i in staying]
                if not rows:
                    return
                keep = torch.tensor(staying, device=device)
                cache.batch_select_indices(keep)
                mask, positions = mask[keep], positions[keep]
            ids = torch.tensor([[chosen[i]] for i in staying], device=device)
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], dim=-1)
            positions = positions[:, -1:] + 1

    def _advance(self, row: _Row, token: int, ends: set[int]) -> bool:
        """Take one token; False once the row is done."""
        request = row.request
        if request.cancelled:
            return False
        row.tokens.append(token)
        finish: str | None = None
        text: str | None = None
        if token in ends:
            finish = "stop"
        elif request.sampling.stop:
            text = self._tokenizer.decode(row.tokens, skip_special_tokens=True)
            cut = _before_stop(text, request.sampling.stop)
            if len(cut) < len(text):
                text, finish = cut, "stop"
        if finish is None and len(row.tokens) >= row.limit:
            finish = "length"
        if finish is None:
            return True
        if text is None:
            text = self._tokenizer.decode(row.tokens, skip_special_tokens=True)
        usage = Usage(len(row.prompt), len(row.tokens))
        message = Message("assistant", text)
        if request.tools:
            message = self._with_calls(row, message, ends)
        request.completion = Completion(message, finish, usage)
        self._notify(request)  # at once: its item need not wait for the slowest of the batch
        return False

    def _with_calls(self, row: _Row, message: Message, ends: set[int]) -> Message:
        """The turn with its tool calls, if there are any."""
        request, tokenizer = row.request, self._tokenizer
        spoken = row.tokens[:-1] if row.tokens[-1] in ends else row.tokens
        # Special tokens are kept until here: in many families they are what marks a call.
        text = _before_stop(tokenizer.decode(spoken), request.sampling.stop)
        first = next_call_number(request.messages)
        meant = self._chat.parse(text, first, tools=request.tools, prompt=row.prompt)
        if meant.tool_calls:
            return replace(meant, content=meant.text.strip())
        if getattr(tokenizer, "response_template", None) is None:
            return message
        # A convention of its own, which the tokenizer can read.
        try:
            given = [tool_to_chat_api(tool) for tool in request.tools]
            whole = _before_stop(tokenizer.decode(row.tokens), request.sampling.stop)
            parsed = tokenizer.parse_response(whole, prefix=row.prompt, tools=given)
            read = message_of(parsed, self._name)
        except Exception:  # noqa: BLE001 - it raises what it likes; then there is no call to be read
            return message
        calls = tuple(replace(c, id=call_id(first + i)) for i, c in enumerate(read.tool_calls))
        return replace(read, tool_calls=calls) if calls else message

    def _end_tokens(self) -> set[int]:
        found: set[int] = set()
        for value in (
            getattr(self._model.generation_config, "eos_token_id", None),
            self._tokenizer.eos_token_id,
        ):
            found.update(value if isinstance(value, list) else [] if value is None else [value])
        return found


def _before_stop(text: str, stops: Sequence[str]) -> str:
    return text[: min((p for s in stops if (p := text.find(s)) >= 0), default=len(text))]


def _common_prefix(prompts: list[list[int]]) -> int:
    """How many tokens all prompts share at their start, leaving each at least one of its own."""
    longest = min(map(len, prompts)) - 1
    for place in range(longest):
        if len({prompt[place] for prompt in prompts}) > 1:
            return place
    return longest


def _choose(logits: Any, row: _Row) -> int:
    import torch

    sampling = row.request.sampling
    if sampling.temperature == 0:
        return int(logits.argmax())
    probabilities = torch.softmax(logits.cpu() / sampling.temperature, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probabilities.sort(descending=True)
        outside = ordered.cumsum(-1) - ordered >= sampling.top_p
        probabilities[order[outside]] = 0.0
    return int(torch.multinomial(probabilities, 1, generator=row.generator))


def _as_endpoint_error(problem: Exception, name: str) -> EndpointError:
    if isinstance(problem, EndpointError):
        return problem
    return EndpointError(f"{name}: {type(problem).__name__}: {problem}")
