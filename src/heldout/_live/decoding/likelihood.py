"""Likelihoods of given continuations: how probable a model finds texts that it did not write.

    [rating] = LikelihoodModel(model, tokenizer, "it").rate([[Continuation("2 + 2 =", " 4")]])

Texts become tokens as lm-eval has them (`_encode_pair`): spaces at the end of the prompt move to
the continuation, and prompt and continuation are encoded as one text, which is cut after as many
tokens as the prompt alone has.

Each prompt of a batch is read once, unless it is short; its continuations then share what attention
has cached of it, and one of a single token needs no second pass. Which texts share a batch depends
on their order alone. Log-probabilities are summed in float32, whatever the model computes in.
"""

from __future__ import annotations

import copy
import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from heldout._live.decoding.checking import (
    LogitsChecks,
    WrongLogits,
    how_far_off,
    own_logits,
    rows_to_compare,
)
from heldout._live.decoding.model import (
    HoldsModel,
    describe_numerics,
    deterministic_inference,
    device_of,
    has_full_attention,
    is_out_of_memory,
    transformers_model,
    unwrap,
)
from heldout._live.isolation import NeedsTrainerThread, is_background_thread
from heldout._live.rendering.chat_templates import ChatFormat, ChatRenderer
from heldout._reasoning import opened_reasoning
from heldout.errors import ContextFull, EndpointError, FatalEndpointError
from heldout.types import Continuation, Likelihood, Message, Rating, Usage

logger = logging.getLogger(__name__)

Ids = tuple[int, ...]
RateResult = Rating | Exception | None


@dataclass(frozen=True, slots=True)
class EncodedPair:
    """A continuation and its prompt in tokens; both have at least one."""

    prompt: Ids
    continuation: Ids


SHARED_FROM = 128
"""Tokens that would be read again from which a second pass is worth its overhead."""
LogProb = tuple[float, bool]
"""Log-probability of a continuation, and whether it is the greedy one."""


class LikelihoodModel(HoldsModel):
    """A transformers model and its tokenizer that rate continuations; errors call it `name`.

    Args:
        model: The model, wrapped as a trainer holds it or bare. It has to be in eval mode.
        tokenizer: Its tokenizer.
        name: What to call it in messages.
        rows: The most continuations in one batch.
        chat: How conversations are rendered; by default by the tokenizer's own template.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        name: str,
        *,
        rows: int = 32,
        chat: ChatFormat | None = None,
    ) -> None:
        self._chat = chat or ChatFormat()
        super().__init__(model)
        self._tokenizer, self._name, self._rows = tokenizer, name, rows
        self._last: dict[str, Any] = {}
        self._ways = _Ways()

    def rate(
        self,
        requests: Sequence[Sequence[Continuation]],
        *,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> list[RateResult]:
        """Rate the continuations of several requests, as many together as fit into a batch.

        Args:
            requests: Continuations that belong together stand in one request.
            keep_going: Polled before every batch; False stops.

        Returns:
            For each request its rating; the reason why it has none; None if it was stopped.

        Raises:
            NeedsTrainerThread: In the background of a training run, something global would have
                to change.
        """
        model = unwrap(self._model)
        if is_background_thread() and device_of(model).type == "cuda":
            raise NeedsTrainerThread("attention kernels are chosen for all threads")
        results: list[RateResult] = [None] * len(requests)
        encoded: dict[int, list[EncodedPair]] = {}
        for index, request in enumerate(requests):
            known: dict[str | tuple[Message, ...], tuple[str, list[int]]] = {}
            try:
                encoded[index] = [self.encode(continuation, known) for continuation in request]
            except Exception as problem:  # noqa: BLE001 - Jinja templates raise anything
                results[index] = problem
        self._ways.reset_if_changed(model)
        with deterministic_inference(model):
            for batch in self._batches(encoded):
                if not keep_going():
                    break
                fitting = self._rate_fitting(batch, encoded, self._rows)
                for index, rated in zip(batch, fitting, strict=True):
                    results[index] = (
                        rated
                        if isinstance(rated, Exception)
                        else make_rating(requests[index], encoded[index], rated)
                    )
        self._last = {
            "way": "likelihood",
            "rows": self._rows,
            **describe_numerics(model),
        }
        if self._ways.wrong:
            self._last["why_slower"] = "; ".join(
                f"{way}: {reason}" for way, reason in self._ways.wrong.items()
            )
        return results

    def describe(self) -> dict[str, Any]:
        """Return how the last call was run."""
        return dict(self._last)

    # --- Texts to tokens ---

    def encode(
        self,
        continuation: Continuation,
        known: dict[str | tuple[Message, ...], tuple[str, list[int]]] | None = None,
    ) -> EncodedPair:
        """Encode a continuation and its prompt.

        Args:
            continuation: The continuation.
            known: Prompts that were encoded already, which this one is added to.

        Raises:
            ContextFull: Both together are longer than the model reads.
            EndpointError: A part of it has no tokens.
            FatalEndpointError: The prompt is a conversation, and the model has no chat template or
                one that has it reason first.
        """
        known = {} if known is None else known
        if continuation.prompt not in known:
            known[continuation.prompt] = self._encode_prompt(continuation.prompt)
        prompt, first = known[continuation.prompt]
        kept = prompt.rstrip()
        text = prompt[len(kept) :] + continuation.text
        if kept:
            rest = self._tokenize(kept + text)[len(first) :]
        else:
            rest = self._tokenizer.encode(text, add_special_tokens=False)
            if rest[:1] == first:
                rest = rest[1:]
        if not rest:
            raise EndpointError(f"the continuation {text!r:.100} adds no token to its prompt")
        config = transformers_model(unwrap(self._model)).config
        context = getattr(config, "max_position_embeddings", None) or 1 << 30
        if len(first) + len(rest) - 1 > context:
            raise ContextFull(
                f"prompt and continuation have {len(first) + len(rest)} tokens, {self._name} "
                f"takes {context}"
            )
        return EncodedPair(tuple(first), tuple(rest))

    def _encode_prompt(self, prompt: str | tuple[Message, ...]) -> tuple[str, list[int]]:
        """Return a prompt as text, and its tokens without the spaces at its end."""
        text = prompt if isinstance(prompt, str) else self._render(prompt)
        kept = text.rstrip()
        return text, self._tokenize(kept) if kept else [self._prefix_token]

    def _tokenize(self, text: str) -> list[int]:
        # A text that begins with the first special token, as chat templates write it, gets no
        # second one.
        if text.startswith(self._prefix_text):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        return list(self._tokenizer.encode(text))

    @cached_property
    def _prefix_token(self) -> int:
        """What stands in for an empty prompt: the token of the beginning, or else of the end."""
        for token in (self._tokenizer.bos_token_id, self._tokenizer.eos_token_id):
            if token is not None:
                return int(token)
        raise FatalEndpointError(
            f"the tokenizer of {self._name} has neither a first nor a last special token, so there "
            "is nothing to begin an empty prompt with"
        )

    @cached_property
    def _prefix_text(self) -> str:
        return str(self._tokenizer.decode(self._prefix_token))

    def use_format(self, chat: ChatFormat) -> None:
        """Render conversations in this way from now on."""
        if chat != self._chat:
            self._chat = chat
            for name in ("_renderer", "_template"):
                self.__dict__.pop(name, None)

    def _render(self, messages: Sequence[Message]) -> str:
        text = self._renderer.text(messages, True)
        may_reason = self._chat.kwargs.get("enable_thinking") is not False
        if opened_reasoning(text) or (may_reason and "enable_thinking" in self._template):
            raise FatalEndpointError(
                f"{self._name} reasons before it answers, by its chat template, so how likely an "
                "answer is right after the question says little. Have answers generated and "
                "graded, or rate continuations of plain text"
            )
        return text

    @cached_property
    def _renderer(self) -> ChatRenderer:
        if not self._chat.has_template(self._tokenizer):
            raise FatalEndpointError(
                f"{self._name} has no chat template, so it can rate continuations of a text but "
                "not turns of a conversation"
            )
        return self._chat.renderer(self._tokenizer)

    @cached_property
    def _template(self) -> str:
        return str(self._tokenizer.get_chat_template(self._chat.template))

    # --- Batches ---

    def _batches(self, encoded: dict[int, list[EncodedPair]]) -> Iterator[list[int]]:
        """Group requests in their order; one with more continuations than rows is alone."""
        batch: list[int] = []
        rows = 0
        for index, pairs in encoded.items():
            if batch and rows + len(pairs) > self._rows:
                yield batch
                batch, rows = [], 0
            batch.append(index)
            rows += len(pairs)
        if batch:
            yield batch

    def _rate_fitting(
        self, batch: list[int], encoded: dict[int, list[EncodedPair]], rows: int
    ) -> list[list[LogProb] | Exception]:
        """Rate requests as one batch, or in halves if that does not fit into memory."""
        model = unwrap(self._model)
        pairs = [pair for index in batch for pair in encoded[index]]
        memory_error = ""
        try:
            rated = iter(_rate_pairs(model, pairs, rows, self._ways))
            return [[next(rated) for _ in encoded[index]] for index in batch]
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            memory_error = str(error).splitlines()[0]
        # Only here: until its exception is gone, the failed batch is still in memory.
        gc.collect()
        if (device := device_of(model)).type == "cuda":
            import torch

            with torch.cuda.device(device):
                torch.cuda.empty_cache()
        if len(batch) == 1 and rows > 1:
            return self._rate_fitting(batch, encoded, min(rows, len(pairs)) // 2 or 1)
        if len(batch) == 1:
            return [EndpointError(f"it does not fit into memory, even alone: {memory_error}")]
        half = (len(batch) + 1) // 2
        return [
            *self._rate_fitting(batch[:half], encoded, rows),
            *self._rate_fitting(batch[half:], encoded, rows),
        ]


def make_rating(
    continuations: Sequence[Continuation], pairs: Sequence[EncodedPair], rated: Sequence[LogProb]
) -> Rating | Exception:
    """Put together what is known of continuations, or why there is no rating."""
    likelihoods = []
    for continuation, pair, (logprob, greedy) in zip(continuations, pairs, rated, strict=True):
        if not math.isfinite(logprob):
            return EndpointError(f"the log-probability of {continuation.text!r:.100} is {logprob}")
        size = len(continuation.text), len(continuation.text.encode())
        likelihoods.append(Likelihood(logprob, greedy, len(pair.continuation), *size))
    read = sum(map(len, {pair.prompt for pair in pairs})) + sum(len(p.continuation) for p in pairs)
    return Rating(tuple(likelihoods), Usage(read, 0))


# --- Forward passes -------------------------------------------------------------------------------


class _Ways(LogitsChecks):
    """Which ways of reading pairs give the model's own logits."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: dict[str, str] = {}
        """Why a way cannot be used."""


Check = Callable[[int, Any], None]
"""`check(index, logits)`: of a pair, the logits of its continuation's tokens."""


def _rate_pairs(model: Any, pairs: Sequence[EncodedPair], rows: int, ways: _Ways) -> list[LogProb]:
    """Rate pairs in the fastest way that gives the model's own logits."""
    from transformers import DynamicCache

    if "sharing" not in ways.wrong and _is_worth_sharing(pairs):
        cache = DynamicCache(config=transformers_model(model).config)
        if has_full_attention(cache):
            with suppress(WrongLogits), _checked(model, pairs, "sharing", ways) as check:
                return _rate_sharing(model, cache, pairs, rows, check)
    if "whole" not in ways.wrong:
        parts = [pairs[start : start + rows] for start in range(0, len(pairs), rows)]
        with suppress(WrongLogits):
            rated: list[LogProb] = []
            for part in parts:
                with _checked(model, part, "whole", ways) as check:
                    rated += _rate_whole(model, part, check)
            return rated
    return [_sum_logprobs(_own_logits(model, pair), pair.continuation) for pair in pairs]


@contextmanager
def _checked(model: Any, pairs: Sequence[EncodedPair], way: str, ways: _Ways) -> Iterator[Check]:
    """Compare two pairs of a batch with the model's own logits, if none like it has passed."""
    texts = [(*pair.prompt, *pair.continuation[:-1]) for pair in pairs]
    key = ways.key(way, texts)
    wanted = [] if ways.has_passed(key) else rows_to_compare(texts)

    def check(index: int, logits: Any) -> None:
        if index in wanted:
            off = how_far_off(model, logits, _own_logits(model, pairs[index]))
            if off is not None:
                raise WrongLogits(f"its logits are {off}")

    try:
        yield check
    except WrongLogits as error:
        ways.wrong[way] = str(error)
        logger.warning("likelihoods are computed in a slower way: %s: %s", way, error)
        raise
    ways.add(key)


def _own_logits(model: Any, pair: EncodedPair) -> Any:
    """Return what the model itself predicts a continuation's tokens from."""
    return own_logits(model, [*pair.prompt, *pair.continuation[:-1]], len(pair.continuation))


def _is_worth_sharing(pairs: Sequence[EncodedPair]) -> bool:
    """Return whether a second pass costs less than reading prompts again."""
    if all(len(pair.continuation) == 1 for pair in pairs):
        return True  # there is no second pass
    again = sum(len(pair.prompt) for pair in pairs) - sum(map(len, {p.prompt for p in pairs}))
    return again >= SHARED_FROM


def _rate_sharing(
    model: Any, cache: Any, pairs: Sequence[EncodedPair], rows: int, check: Check
) -> list[LogProb]:
    """Read each prompt once, then its continuations on top of what is cached of it."""
    import torch

    device = device_of(model)
    prompts = list(dict.fromkeys(pair.prompt for pair in pairs))
    row_of = {prompt: row for row, prompt in enumerate(prompts)}
    longer = [index for index, pair in enumerate(pairs) if len(pair.continuation) > 1]
    width = max(map(len, prompts))
    # Padded on the left, so that all prompts end in the same column.
    ids = torch.tensor([[0] * (width - len(p)) + [*p] for p in prompts], device=device)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    out = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    first = out.logits[:, -1:]
    rated = [_sum_logprobs(first[row_of[pair.prompt]], pair.continuation[:1]) for pair in pairs]
    for index, pair in enumerate(pairs):
        if len(pair.continuation) == 1:
            check(index, first[row_of[pair.prompt]])
    for start in range(0, len(longer), rows):
        part = longer[start : start + rows]
        own_cache = cache if start + rows >= len(longer) else copy.deepcopy(cache)
        of_prompt = [row_of[pairs[index].prompt] for index in part]
        own_cache.batch_select_indices(torch.tensor(of_prompt, device=device))
        # Padded on the right: what comes after a token cannot change what it predicts.
        inputs = [pairs[index].continuation[:-1] for index in part]
        length = max(map(len, inputs))
        begins = torch.tensor([[len(pairs[index].prompt)] for index in part], device=device)
        ends = begins + torch.tensor([[len(i) - 1] for i in inputs], device=device)
        positions = begins + torch.arange(length, device=device)
        logits = model(
            input_ids=torch.tensor([[*i] + [0] * (length - len(i)) for i in inputs], device=device),
            attention_mask=torch.cat([mask[of_prompt], mask.new_ones(len(part), length)], dim=-1),
            position_ids=torch.minimum(positions, ends),  # padding may be out of range
            past_key_values=own_cache,
            use_cache=True,
        ).logits
        for row, index in enumerate(part):
            pair = pairs[index]
            after = logits[row, : len(pair.continuation) - 1]
            check(index, torch.cat([first[row_of[pair.prompt]], after]))
            logprob, greedy = _sum_logprobs(after, pair.continuation[1:])
            rated[index] = rated[index][0] + logprob, rated[index][1] and greedy
    return rated


def _rate_whole(model: Any, pairs: Sequence[EncodedPair], check: Check) -> list[LogProb]:
    """Read every prompt with its continuation: short ones, and layers with other attention."""
    import torch

    inputs = [(*pair.prompt, *pair.continuation[:-1]) for pair in pairs]
    width = max(map(len, inputs))
    # Padded on the right, so no mask is needed, and a sliding window has no padding in it.
    kept = width - min(len(pair.prompt) for pair in pairs) + 1
    logits = model(
        input_ids=torch.tensor(
            [[*i] + [0] * (width - len(i)) for i in inputs], device=device_of(model)
        ),
        use_cache=False,
        logits_to_keep=kept,
    ).logits
    rated = []
    for row, pair in enumerate(pairs):
        begin = len(pair.prompt) - 1 - (width - logits.shape[1])
        own = logits[row, begin : begin + len(pair.continuation)]
        check(row, own)
        rated.append(_sum_logprobs(own, pair.continuation))
    return rated


def _sum_logprobs(logits: Any, tokens: Sequence[int]) -> LogProb:
    """Sum the log-probabilities of tokens; each row of logits predicts one of them."""
    import torch

    wanted = torch.tensor(tokens, device=logits.device)
    used = logits[: len(tokens)].float()
    logprobs = torch.log_softmax(used, dim=-1).gather(-1, wanted[:, None])
    return float(logprobs.sum()), bool((used.argmax(-1) == wanted).all())
