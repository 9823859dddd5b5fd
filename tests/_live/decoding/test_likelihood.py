"""Likelihoods of given continuations: as one plain forward pass per text has them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

import heldout._live.decoding.likelihood as likelihood
from heldout import Message
from heldout._live.decoding.likelihood import EncodedPair, LikelihoodModel
from heldout.errors import ContextFull, EndpointError, FatalEndpointError
from heldout.types import Continuation, Rating
from tests._live.decoding.models import model_of, tokenizer
from tests.tolerances import near

pytestmark = pytest.mark.usefixtures("one_thread")

FAMILIES: dict[str, Any] = {
    "full attention": ("Llama", {}),
    "positions that are learned": ("GPT2", {}),
    "a sliding window": ("Mistral", {"sliding_window": 4}),
}


def make_requests() -> list[list[Continuation]]:
    """Prompts of different lengths; one word, several words, one prompt for all and for each."""
    words = [f"w{i}" for i in range(40)]
    shared = [
        [Continuation(" ".join(words[: 3 + n]), " " + " ".join(words[9 : 10 + (n * k) % 5]))
         for k in range(4)]
        for n in range(5)
    ]  # fmt: skip
    single = [Continuation("w1 w2 w3 ", f"w{n}") for n in (4, 5, 6)]
    several = [Continuation(f"w{n} w9", " w7 w8 w9") for n in (1, 2)] + [Continuation("", "w7 w8")]
    return [*shared, single, several]


def rate_plainly(model: Any, pair: EncodedPair) -> tuple[float, bool]:
    ids = torch.tensor([[*pair.prompt, *pair.continuation]])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0].float().log_softmax(-1)
    start = len(pair.prompt) - 1
    rows = logprobs[start : start + len(pair.continuation)]
    wanted = torch.tensor(pair.continuation)
    greedy = bool((rows.argmax(-1) == wanted).all())
    return float(rows.gather(-1, wanted[:, None]).sum()), greedy


def ratings(results: Sequence[Any]) -> list[Rating]:
    assert all(isinstance(result, Rating) for result in results), results
    return list(results)


@pytest.mark.parametrize("shared_from", [0, 10_000], ids=["shared", "whole"])
@pytest.mark.parametrize("rows", [1, 5, 64])
@pytest.mark.parametrize("family", FAMILIES)
def test_likelihoods_are_those_of_one_pass_per_text(
    family: str, rows: int, shared_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(likelihood, "SHARED_FROM", shared_from)
    name, settings = FAMILIES[family]
    model, words = model_of(name, **settings), tokenizer()
    before = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rater = LikelihoodModel(model, words, "it", rows=rows)
    requests = make_requests()
    # One that greedy decoding would have written.
    pair = rater.encode(requests[0][0])
    with torch.no_grad():
        best = int(model(input_ids=torch.tensor([pair.prompt])).logits[0, -1].argmax())
    requests.append([Continuation(requests[0][0].prompt, " " + words.decode([best]))])
    for request, rating in zip(requests, ratings(rater.rate(requests)), strict=True):
        for continuation, rated in zip(request, rating.likelihoods, strict=True):
            pair = rater.encode(continuation)
            logprob, greedy = rate_plainly(model, pair)
            assert rated.logprob == near(logprob)
            assert (rated.greedy, rated.tokens) == (greedy, len(pair.continuation))
            assert rated.characters == rated.bytes == len(continuation.text)
    assert rating.likelihoods[0].greedy
    assert torch.equal(torch.get_rng_state(), before[1])
    assert all(torch.equal(value, before[0][key]) for key, value in model.state_dict().items())


def test_one_pass_reads_each_prompt_once_and_its_single_tokens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, shapes = model_of("Llama"), []
    forward = model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        shapes.append(tuple(kwargs["input_ids"].shape))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    rater = LikelihoodModel(model, tokenizer(), "it")
    letters = [Continuation("w1 w2 w3 w4", f" w{n}") for n in range(5, 9)]
    longer = [Continuation("w1 w2 " * 30, f"w{n} w9 w9") for n in range(5, 9)]
    again = [Continuation("w1 w2 w3 w4", f" w{n} w9 w9") for n in range(5, 9)]
    for request in (letters, longer, again):
        rater.rate([request])  # each shape is checked the first time
    shapes.clear()
    [rating] = ratings(rater.rate([letters]))
    assert shapes == [(1, 4)]
    assert rating.usage is not None
    assert rating.usage.prompt_tokens == 4 + 4
    rater.rate([longer])
    assert shapes[1:] == [(1, 60), (4, 2)]
    # To read a short prompt again is cheaper than a second pass.
    rater.rate([again])
    assert shapes[3:] == [(4, 6)]


def test_the_numbers_of_a_request_depend_on_the_requests_before_it_and_not_on_timing() -> None:
    requests = make_requests()
    rater = LikelihoodModel(model_of("Llama"), tokenizer(), "it", rows=8)
    first = rater.rate(requests)
    assert rater.rate(requests) == first
    assert rater.describe() == {
        "way": "likelihood", "rows": 8, "attention": "sdpa", "dtype": "float32",
    }  # fmt: skip
    # Stopped in between: what is complete stays, the rest has no result.
    answers = iter([True, False])
    stopped = rater.rate(requests, keep_going=lambda: next(answers))
    assert stopped == [*first[:2], *[None] * (len(first) - 2)]


def test_a_batch_that_does_not_fit_is_run_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    rater = LikelihoodModel(model_of("Llama"), tokenizer(), "it")
    requests = make_requests()
    expected = ratings(rater.rate(requests))
    whole, most = likelihood._rate_pairs, 4

    def limited(model: Any, pairs: Any, rows: int, ways: Any) -> Any:
        if len(pairs) > most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(model, pairs, rows, ways)

    monkeypatch.setattr(likelihood, "_rate_pairs", limited)
    for rating, other in zip(ratings(rater.rate(requests)), expected, strict=True):
        for one, two in zip(rating.likelihoods, other.likelihoods, strict=True):
            assert one.logprob == near(two.logprob)
    most = 2
    results = rater.rate(requests)
    assert isinstance(results[0], EndpointError)
    assert "even alone" in str(results[0])


def test_texts_become_tokens_as_lm_eval_has_them() -> None:
    words = tokenizer()
    rater = LikelihoodModel(model_of("Llama"), words, "it")
    ids = words.convert_tokens_to_ids
    for prompt, text, expected in [
        ("w1 w2", " w3 w4", ("w1 w2", "w3 w4")),
        ("w1 w2 \n", "w3", ("w1 w2", "w3")),  # spaces move to the continuation
        ("", "w3 w4", ("<s>", "w3 w4")),
        (" ", "w3", ("<s>", "w3")),
        ("", "<s> w3", ("<s>", "w3")),  # it has begun with it already
        ("<s> w1", " w3", ("<s> w1", "w3")),
    ]:
        pair = rater.encode(Continuation(prompt, text))
        assert pair == EncodedPair(*(tuple(ids(part.split())) for part in expected)), prompt


@pytest.mark.parametrize(
    ("prompt", "text", "kind", "message"),
    [
        ("w1", "", EndpointError, "adds no token to its prompt"),
        ("w1 " * 250, " w2" * 8, ContextFull, "have 258 tokens, it takes 256"),
        ((Message("user", "forbidden"),), "w1", Exception, "no such word"),
    ],
)
def test_what_cannot_be_rated_is_the_error_of_its_request(
    prompt: Any, text: str, kind: type[Exception], message: str
) -> None:
    rater = LikelihoodModel(model_of("Llama"), tokenizer(), "it")
    fine = [Continuation("w1", " w2")]
    bad, good = rater.rate([[*fine, Continuation(prompt, text)], fine])
    assert isinstance(bad, kind)
    assert message in str(bad)
    assert isinstance(good, Rating)


def test_a_likelihood_that_is_no_number_is_an_error() -> None:
    model = model_of("Llama")
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    [result] = LikelihoodModel(model, tokenizer(), "it").rate([[Continuation("w1", " w2")]])
    assert isinstance(result, EndpointError)
    assert "is nan" in str(result)


def test_turns_of_a_conversation_follow_its_chat_template() -> None:
    words = tokenizer()
    rater = LikelihoodModel(model_of("Llama"), words, "it")
    turn = Continuation((Message("user", "w1 w2"),), " w3")
    pair = rater.encode(turn)
    assert words.decode(pair.prompt) == "<s> user w1 w2 assistant"
    assert words.decode(pair.continuation) == "w3"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (None, "has no chat template"),
        ("{{ messages[0]['content'] }}<think>\n", "reasons before it answers"),
        ("{{ messages[0]['content'] }}{% if enable_thinking %}{% endif %}", "reasons before"),
    ],
)
def test_turns_are_refused_where_there_is_no_template_or_one_that_reasons_first(
    template: str | None, message: str
) -> None:
    words = tokenizer()
    words.chat_template = template
    rater = LikelihoodModel(model_of("Llama"), words, "it")
    turn, text = Continuation((Message("user", "w1"),), "w2"), Continuation("w1", " w2")
    refused, rated = rater.rate([[turn], [text]])
    assert isinstance(refused, FatalEndpointError)
    assert message in str(refused)
    assert isinstance(rated, Rating)
