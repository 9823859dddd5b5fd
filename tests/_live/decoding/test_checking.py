"""Every way of decoding beside the model's own logits; logits that are no numbers."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import anyio
import pytest
import torch

import heldout
from heldout import Message, Sample, Trajectory
from heldout._live.decoding import Decoder, Generation, Prompt
from heldout._live.decoding.checking import disagreement, tolerance
from heldout._live.decoding.likelihood import LikelihoodModel
from heldout.errors import EndpointError, FatalEndpointError, SystemicFailure
from heldout.models.local import LocalEndpoint
from heldout.types import Continuation, Rating
from tests._live.decoding.models import PROMPTS, ids_of, model_of, tokenizer
from tests.tolerances import near

pytestmark = pytest.mark.usefixtures("one_thread")

BOTH = pytest.mark.parametrize("graphs", [False, True], ids=["eager", "fixed"])
STATE_SPACE: dict[str, dict[str, Any]] = {
    "Mamba": {"state_size": 8},
    "Mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16},
    "FalconMamba": {"state_size": 8},
    "Rwkv": {"attention_hidden_size": 32, "context_length": 256, "rescale_every": 0},
}
"""None takes a cache as `past_key_values`; RWKV takes no mask, nor steps of several rows."""


def state_space_model(family: str) -> Any:
    import transformers

    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "bos_token_id": 1,
        "eos_token_id": 2, "pad_token_id": 0}  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**sizes, **STATE_SPACE[family])
    with torch.random.fork_rng():
        torch.manual_seed(5)
        model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
        for weight in model.parameters():
            if weight.dim() == 2 and family != "Mamba2":
                torch.nn.init.normal_(weight, std=0.5)
    return model


def continue_plainly(model: Any, prompt: Prompt) -> tuple[int, ...]:
    """Greedy decoding by the definition: the whole sequence anew for each token."""
    ids = list(prompt.ids)
    while len(ids) < len(prompt.ids) + prompt.max_new:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        ids.append(int(logits.argmax()))
        if ids[-1] == 2:
            break
    return tuple(ids[len(prompt.ids) :])


# --- Models with conventions of their own -------------------------------------------------------


@pytest.mark.parametrize("family", STATE_SPACE)
def test_a_state_space_model_says_what_its_own_forward_pass_says(family: str) -> None:
    model = state_space_model(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    settings, random = model.generation_config, torch.get_rng_state()
    decoder = Decoder(model, tokenizer(), rows=4)
    expected = [continue_plainly(model, prompt) for prompt in PROMPTS]
    assert ids_of(decoder.decode(PROMPTS)) == expected
    described = decoder.describe()
    assert described["way"] == "generate"
    assert "eager: its logits after the" in described["why_generate"]
    # One row alone, by a decoder that knows nothing of the others.
    assert ids_of(Decoder(model, tokenizer(), rows=4).decode(PROMPTS[:1])) == expected[:1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.generation_config is settings
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("family", STATE_SPACE)
def test_its_likelihoods_are_its_own(family: str) -> None:
    model = state_space_model(family)
    rater = LikelihoodModel(model, tokenizer(), "it")
    texts = [Continuation("w1 w2 " * 70, f"w{n} w9") for n in (4, 5)] + [
        Continuation("w3", " w4 w5 w6"), Continuation("w3 w8", " w4")]  # fmt: skip
    [rating] = rater.rate([texts])
    assert isinstance(rating, Rating)
    for text, likelihood in zip(texts, rating.likelihoods, strict=True):
        pair = rater.encode(text)
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([[*pair.prompt, *pair.continuation]])).logits[0]
        rows = logits.log_softmax(-1)[len(pair.prompt) - 1 : -1]
        own = rows.gather(-1, torch.tensor(pair.continuation)[:, None]).sum()
        assert likelihood.logprob == near(float(own))


@pytest.mark.parametrize("family", STATE_SPACE)
def test_turns_end_by_generate_as_they_end_elsewhere(family: str) -> None:
    """Limits, stop texts, sampling, dropped rows: all but the tokens is the decoder's own."""
    model, words = state_space_model(family), tokenizer()
    decoder = Decoder(model, words, rows=4)
    whole = ids_of(decoder.decode(PROMPTS))[3]
    asked = [
        replace(PROMPTS[3], max_new=2),
        replace(PROMPTS[3], stops=(words.decode([whole[1]]),)),
        replace(PROMPTS[3], temperature=1.0, seed=3),
        PROMPTS[5],
    ]
    short, stopped, sampled, dropped = decoder.decode(asked, wanted=lambda i: i != 3)
    assert isinstance(short, Generation)
    assert isinstance(stopped, Generation)
    assert (short.ids, short.finish) == (whole[:2], "length")
    assert stopped.ids == whole[: whole.index(whole[1]) + 1]
    assert dropped is None
    assert decoder.decode(asked[2:3]) == [sampled]  # whatever the batch is
    # A setting of the model's own changes nothing, as in the other ways.
    model.generation_config.repetition_penalty = 5.0
    model.generation_config.suppress_tokens = [whole[0]]
    assert ids_of(decoder.decode(PROMPTS))[3] == whole
    polls = iter([True, True, True, False])
    assert decoder.decode(PROMPTS[3:4], keep_going=lambda: next(polls, False)) == [None]


def test_an_eval_of_a_state_space_model_counts_what_it_says(tmp_path: Any) -> None:
    model, words = state_space_model("Mamba"), tokenizer()
    prompts = [f"w{n} w{n + 7} w2" for n in range(8)]
    ids = [words.apply_chat_template([{"role": "user", "content": text}],
        add_generation_prompt=True)["input_ids"] for text in prompts]  # fmt: skip
    said = [words.decode(continue_plainly(model, Prompt(tuple(each), 6)),
        skip_special_tokens=True) for each in ids]  # fmt: skip

    def score(trajectory: Trajectory, sample: Sample) -> bool:
        return trajectory.answer.strip() == str(sample.ground_truth).strip()

    samples = [
        Sample(text, {"question": text}, answer) for text, answer in zip(prompts, said, strict=True)
    ]
    report = heldout.run(
        samples,
        score,
        endpoint=LocalEndpoint(model, words),
        max_tokens=6,
        output_dir=tmp_path,
    )
    assert report.summary["mean"] == 1.0


def test_a_way_that_breaks_after_the_first_token_is_left_for_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Positions that are counted from the padding on: only padded rows are off."""
    model = model_of("GPT2")
    expected = [continue_plainly(model, prompt) for prompt in PROMPTS]
    forward = model.forward

    def counting_padding(*args: Any, position_ids: Any = None, **kwargs: Any) -> Any:
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting_padding)
    decoder = Decoder(model, tokenizer(), rows=4, graphs=False)
    assert ids_of(decoder.decode(PROMPTS)) == expected
    assert "eager" in decoder.describe()["why_generate"]


def test_a_model_that_no_way_gives_the_logits_of_answers_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    model = model_of("Llama")
    forward = model.forward

    def forgetful(*args: Any, past_key_values: Any = None, **kwargs: Any) -> Any:
        """Says something else wherever there is a cache."""
        out = forward(*args, past_key_values=past_key_values, **kwargs)
        if past_key_values is not None:
            out.logits = out.logits.roll(1, -1)
        return out

    monkeypatch.setattr(model, "forward", forgetful)
    results = Decoder(model, tokenizer(), rows=4).decode(PROMPTS[:3])
    for result in results:
        assert isinstance(result, FatalEndpointError)
        assert "no way of decoding gives the logits of this model's own" in str(result)
    with pytest.raises(SystemicFailure, match="no way of decoding"):
        heldout.run(
            [Sample(n, {"question": n}) for n in ("w1", "w2")],
            lambda trajectory, sample: 0.0,
            endpoint=LocalEndpoint(model, tokenizer()),
            output_dir=tmp_path,
        )
    # Prompts are read once more for each continuation, without a cache.
    rater = LikelihoodModel(model, tokenizer(), "it")
    texts = [Continuation("w1 w2 " * 80, f"w{n}") for n in (4, 5)]
    [rating] = rater.rate([texts])
    assert isinstance(rating, Rating)
    assert "sharing" in rater.describe()["why_slower"]
    monkeypatch.undo()
    [own] = LikelihoodModel(model, tokenizer(), "it").rate([texts])
    assert isinstance(own, Rating)
    for a, b in zip(rating.likelihoods, own.likelihoods, strict=True):
        assert a.logprob == near(b.logprob)


def test_the_check_costs_two_passes_once_for_a_shape_and_model() -> None:
    model, lengths = model_of("Llama"), []
    hook = model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs.get("use_cache")), with_kwargs=True
    )
    decoder = Decoder(model, tokenizer(), rows=4, graphs=False)
    decoder.decode(PROMPTS[:4])
    assert lengths.count(False) == 2
    lengths.clear()
    decoder.decode(PROMPTS[:4])
    assert False not in lengths
    longer = [replace(prompt, ids=prompt.ids * 9) for prompt in PROMPTS[:4]]
    decoder.decode(longer)
    assert lengths.count(False) == 2
    hook.remove()


def test_what_is_off_by_a_constant_is_not_off_and_what_has_another_context_is() -> None:
    own = torch.randn(2, 50, generator=torch.Generator().manual_seed(1)) - 100.0
    assert disagreement(own + 3.0, own) < 1e-4
    assert disagreement(own.roll(1, -1), own) > 1.0  # 1% of their norm
    masked = own.clone()
    masked[:, 7] = float("-inf")
    assert disagreement(masked, masked + 1.0) < 1e-4
    assert disagreement(masked, own) == float("inf")


def test_half_precision_is_allowed_its_rounding_whoever_brings_it() -> None:
    model = model_of("Llama")
    ids = torch.tensor([[8, 9, 10]])
    with torch.no_grad():
        assert tolerance(model, model(ids).logits) == 0.01
        with torch.autocast("cpu", torch.bfloat16):
            assert tolerance(model, model(ids).logits.float()) == 0.1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            packed = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear})
        assert tolerance(packed, packed(ids).logits) == 0.1
        assert tolerance(model.bfloat16(), model(ids).logits) == 0.1


# --- Logits that are not finite -----------------------------------------------------------------


def diverge(model: Any, value: str) -> None:
    with torch.no_grad():
        if value == "overflow":
            model.lm_head.weight.fill_(3e38)  # finite, and so is their sum in double precision
            model.lm_head.weight[1::2] *= -1
        else:
            model.lm_head.weight[5, 5] = float(value)


@BOTH
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", ["nan", "inf", "overflow"])
def test_logits_that_are_no_numbers_are_errors_and_no_answers(
    value: str, temperature: float, graphs: bool
) -> None:
    model = model_of("Llama", tie_word_embeddings=False)
    diverge(model, value)
    asked = [replace(prompt, temperature=temperature, seed=1) for prompt in PROMPTS[:3]]
    wanted = "overflow" if value == "overflow" else "lm_head.weight is not finite"
    for result in Decoder(model, tokenizer(), rows=4, graphs=graphs).decode(asked):
        assert isinstance(result, EndpointError)
        assert wanted in str(result)


@BOTH
def test_one_row_that_overflows_costs_the_others_nothing(graphs: bool) -> None:
    model = model_of("Llama")
    expected = ids_of(Decoder(model, tokenizer(), rows=4).decode(PROMPTS[:3]))
    bad = replace(PROMPTS[3], ids=(*PROMPTS[3].ids[:-1], 50))
    model.model.embed_tokens.weight.data[50] = float("inf")
    *fine, result = Decoder(model, tokenizer(), rows=4, graphs=graphs).decode([*PROMPTS[:3], bad])
    if not any(50 in ids for ids in expected):
        assert ids_of(fine) == expected
    assert isinstance(result, EndpointError)


@pytest.mark.parametrize("value", ["nan", "inf", "overflow"])
def test_a_diverged_model_in_memory_has_no_reward(value: str, tmp_path: Any) -> None:
    model = model_of("Llama", tie_word_embeddings=False)
    diverge(model, value)
    named = "overflow" if value == "overflow" else "is not finite"
    with pytest.raises(SystemicFailure, match=named):
        heldout.run(
            [Sample(n, {"question": n}) for n in ("w1", "w2")],
            lambda trajectory, sample: 0.0,
            endpoint=LocalEndpoint(model, tokenizer()),
            output_dir=tmp_path,
        )


@pytest.mark.parametrize("value", ["nan", "inf", "overflow"])
def test_a_diverged_model_in_memory_rates_nothing(value: str) -> None:
    model = model_of("Llama", tie_word_embeddings=False)
    diverge(model, value)
    texts = [Continuation((Message("user", "w1"),), " w2"), Continuation("w1", " w2 w3")]

    async def rate() -> None:
        endpoint = LocalEndpoint(model, tokenizer())
        try:
            await endpoint.rate(texts)
        finally:
            await endpoint.close()

    with pytest.raises(EndpointError, match="nan" if value == "overflow" else "not finite"):
        anyio.run(rate)


def test_a_model_in_memory_that_diverges_after_a_run_answers_nothing_in_the_next(
    tmp_path: Any,
) -> None:
    model = model_of("Llama", tie_word_embeddings=False)
    endpoint = LocalEndpoint(model, tokenizer())

    def ask() -> Any:
        return heldout.run(
            [Sample("w1", {"question": "w1"})],
            lambda trajectory, sample: 1.0,
            endpoint=endpoint,
            output_dir=tmp_path,
        )

    assert ask().summary["mean"] == 1.0
    # Its logits are -inf here and there, which a model may use for tokens that there are not.
    model.lm_head.weight.data[5, 5] = float("inf")
    with pytest.raises(SystemicFailure, match="lm_head.weight is not finite"):
        ask()
