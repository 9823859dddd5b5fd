"""Likelihoods from a server: completions that echo the prompt with its log-probabilities.

vLLM's `/completions` gives them; chat completions have no such thing, and `transformers serve` and
OpenAI itself refuse it. The text goes to the server as it is, so a conversation cannot be rated:
its chat template is applied by another API.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from heldout._core.providers import OPENAI
from heldout.errors import ContextFull, EndpointError, FatalEndpointError, TransientError
from heldout.models.http import Response, ServerEndpoint, TokenCount
from heldout.types import Continuation, Likelihood, Rating, Usage


class _EchoLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None = None


class _EchoChoice(msgspec.Struct):
    logprobs: _EchoLogprobs | None = None


class _EchoUsage(msgspec.Struct):
    prompt_tokens: TokenCount


class _EchoReply(msgspec.Struct):
    choices: list[_EchoChoice]
    usage: _EchoUsage | None = None


class EchoEndpoint(ServerEndpoint):
    """The completions of an OpenAI-compatible server, for the likelihoods of given texts."""

    kind = "openai"
    path = "/completions"
    provider = OPENAI
    reply_type = _EchoReply

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Rate given continuations, with a request for each; see `RatesContinuations`."""
        likelihoods: list[Likelihood] = []
        read = 0
        for continuation in continuations:
            if not isinstance(continuation.prompt, str):
                raise FatalEndpointError(
                    f"{self._url} rates continuations of a text; those of a conversation need the "
                    "model's chat template, which a server applies to chat requests alone (hf:PATH "
                    "has it here)"
                )
            likelihood, tokens = await self._rate_one(continuation.prompt, continuation.text)
            likelihoods.append(likelihood)
            read += tokens
        return Rating(tuple(likelihoods), Usage(read, 0))

    async def _rate_one(self, prompt: str, text: str) -> tuple[Likelihood, int]:
        response = await self._post(
            {
                "model": self.model,
                "prompt": prompt + text,
                "max_tokens": 1,  # some servers refuse 0
                "temperature": 0,
                "echo": True,
                "logprobs": 1,
            }
        )
        if response.status in (400, 404, 405, 422, 501) and not self._is_available:
            error = self._error_for(response)
            if not isinstance(error, ContextFull):
                raise FatalEndpointError(f"{self._no_echo} {error}")
        if response.status != 200:
            raise self._error_for(response)
        echoed, count = self._read_echo(response)
        self._is_available = self._has_answered = True
        # As lm-eval has it, spaces at the end of the prompt belong to the continuation.
        own = prompt[len(prompt.rstrip()) :] + text
        first = _find_first(echoed.tokens[:count], own)
        if first is None:
            raise EndpointError(
                f"{self._url}: no token begins where {own!r:.100} does, so its likelihood is not "
                "known apart from the prompt's"
            )
        given = echoed.token_logprobs[first:count]
        logprobs = [value for value in given if value is not None and math.isfinite(value)]
        if len(logprobs) != len(given):
            raise EndpointError(f"{self._url} has no log-probability for a token of {own!r:.100}")
        best = (echoed.top_logprobs or [])[first:count]
        greedy = len(best) == len(logprobs) and all(
            top and logprob >= max(top.values())
            for top, logprob in zip(best, logprobs, strict=True)
        )
        size = len(text), len(text.encode())
        return Likelihood(sum(logprobs), greedy, count - first, *size), count

    def _read_echo(self, response: Response) -> tuple[_EchoLogprobs, int]:
        """Return the log-probabilities, and how many tokens are the prompt's."""
        try:
            reply = msgspec.json.decode(response.body, type=_EchoReply)
        except msgspec.MsgspecError as problem:
            raise TransientError(
                f"{self._url} answered 200 with something that is not a reply ({problem}): "
                f"{response.excerpt()}"
            ) from None
        echoed = reply.choices[0].logprobs if reply.choices else None
        count = reply.usage.prompt_tokens if reply.usage else 0
        if echoed is None or not 0 < count <= len(echoed.tokens) == len(echoed.token_logprobs):
            raise FatalEndpointError(f"{self._no_echo} It sent back {response.excerpt()}")
        return echoed, count

    @property
    def _no_echo(self) -> str:
        return (
            f"{self._url} does not give the log-probabilities of a prompt (echo with logprobs), "
            "which this eval compares; vLLM does, and hf:PATH runs a model in this process."
        )


def _find_first(tokens: Sequence[str], text: str) -> int | None:
    """Find the token that a text at the end of all tokens begins with; None if it begins inside."""
    left = text
    for index in range(len(tokens) - 1, -1, -1):
        token: Any = tokens[index]
        if not token or not left.endswith(token):
            return None
        left = left.removesuffix(token)
        if not left:
            return index
    return None
