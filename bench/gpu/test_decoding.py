"""What only a GPU shows of decoding: that captured graphs say what the plain way says.

    PYTHONPATH=src:. python -m pytest bench/gpu/test_decoding.py

Not part of `make test`, which runs without a GPU. bench/gpu/midrun.py measures the same code.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
import torch
from tests._live.decoding.models import PROMPTS, generated, ids_of, model_of, tokenizer

from heldout import Sample
from heldout._core.config import Sampling
from heldout._live.decoding import Decoder, Prompt
from heldout._live.decoding.captured import graphs, placing
from heldout._live.decoding.likelihood import LikelihoodModel
from heldout._live.isolation import NeedsTrainerThread, background_thread
from heldout.models.local import LocalEndpoint
from heldout.training import PeriodicEval, live_model
from heldout.types import Continuation, Message, Rating


def on_gpu(family: str, **settings: Any) -> Any:
    return model_of(family, **settings).to("cuda")


FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("captured", {}),
    "Qwen2": (
        "captured",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "Qwen3": ("captured", {"head_dim": 8}),
    "Mistral": ("captured", {"sliding_window": 4}),
    "Gemma": ("captured", {"head_dim": 8}),
    "Gemma2": ("captured", {"head_dim": 8, "sliding_window": 4}),
    "Gemma3": ("captured", {"head_dim": 8, "sliding_window": 4}),
    "Phi3": ("captured", {}),
    "GPT2": ("captured", {}),
    "Cohere": ("captured", {}),
    "Olmo2": ("captured", {}),
    # In float32 transformers runs experts one by one, and looks how many tokens each has.
    "GptOss": ("eager", {"head_dim": 8, "sliding_window": 4}),
    "Qwen3Moe": ("eager", {"head_dim": 8}),
    "Mixtral": ("eager", {}),
}
"""Which way each family takes; docs/training.md has the same table."""


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_says_what_generate_says(family: str) -> None:
    expected, settings = FAMILIES[family]
    model = on_gpu(family, **settings)
    decoder = Decoder(model, tokenizer(), rows=4)
    found = decoder.decode(PROMPTS)
    assert ids_of(found) == generated(model, PROMPTS)
    assert decoder.describe()["way"] == expected, decoder.describe()
    assert all(decoder.decode(PROMPTS) == found for _ in range(5))
    plain = Decoder(model, tokenizer(), rows=4, graphs=False)
    assert ids_of(plain.decode(PROMPTS)) == ids_of(found)


@pytest.mark.parametrize("family", ["GptOss", "Qwen3Moe", "Mixtral"])
def test_experts_are_captured_in_half_precision(family: str) -> None:
    model = on_gpu(family, hidden_size=64, intermediate_size=64, head_dim=16).bfloat16()
    decoder = Decoder(model, tokenizer(), rows=4)
    found = decoder.decode(PROMPTS)
    assert decoder.describe()["way"] == "captured", decoder.describe()
    assert all(decoder.decode(PROMPTS) == found for _ in range(5))


@pytest.mark.parametrize("top_p", [None, 0.8])
def test_sampled_turns_are_captured_and_do_not_depend_on_the_batch(top_p: float | None) -> None:
    model = on_gpu("Llama")
    hot = [Prompt(p.ids, 20, temperature=1.0, top_p=top_p, seed=i) for i, p in enumerate(PROMPTS)]
    decoder = Decoder(model, tokenizer(), rows=4)
    found = ids_of(decoder.decode(hot))
    assert decoder.describe()["way"] == "captured"
    assert ids_of(decoder.decode(hot)) == found
    assert ids_of(decoder.decode(hot[::-1])) == found[::-1]
    assert ids_of(Decoder(model, tokenizer(), rows=2).decode(hot)) == found
    assert ids_of(decoder.decode([replace(p, seed=99 + i) for i, p in enumerate(hot)])) != found
    # Beside sampled rows a greedy one says what it says alone.
    mixed = [PROMPTS[0], *hot[1:]]
    assert ids_of(decoder.decode(mixed)) == [*generated(model, PROMPTS[:1]), *found[1:]]


@pytest.mark.parametrize("top_p", [None, 0.6])
def test_sampled_tokens_have_the_probabilities_of_the_model(top_p: float | None) -> None:
    model = on_gpu("Llama")
    ids = PROMPTS[0].ids
    asked = [Prompt(ids, 1, temperature=0.7, top_p=top_p, seed=i) for i in range(4096)]
    found = torch.tensor(ids_of(Decoder(model, tokenizer(), rows=256).decode(asked))).flatten()
    with torch.no_grad():
        logits = model(torch.tensor([ids], device="cuda")).logits[0, -1].float().cpu()
    expected = torch.softmax(logits / 0.7, -1)
    if top_p is not None:
        ordered, order = expected.sort(descending=True)
        expected[order[ordered.cumsum(-1) - ordered >= top_p]] = 0
        expected /= expected.sum()
    counts = torch.bincount(found, minlength=len(expected)) / len(found)
    assert not counts[expected == 0].any()
    error = (expected * (1 - expected) / len(found)).sqrt()
    assert bool(((counts - expected).abs() <= 5 * error).all())


def test_a_batch_in_half_precision_says_the_same_with_and_without_kernels_up_to_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = on_gpu("Qwen3", head_dim=16, hidden_size=64, intermediate_size=128).bfloat16()
    with_kernels = Decoder(model, tokenizer(), rows=4)
    found = ids_of(with_kernels.decode(PROMPTS))
    assert "why_no_kernels" not in with_kernels.describe()
    monkeypatch.setattr(placing, "why_no_triton", lambda device: "not now")
    without = Decoder(model, tokenizer(), rows=4)
    same = [a == b for a, b in zip(ids_of(without.decode(PROMPTS)), found, strict=True)]
    assert without.describe()["why_no_kernels"] == "not now"
    assert sum(same) >= len(same) / 2  # near-ties of random weights fall either way


def test_a_longer_batch_serves_shorter_turns_and_they_say_the_same() -> None:
    sizes = {"head_dim": 16, "hidden_size": 64, "max_position_embeddings": 4096}
    model = on_gpu("Qwen3", intermediate_size=128, **sizes).bfloat16()
    short = [replace(prompt, max_new=200) for prompt in PROMPTS]
    decoder = Decoder(model, tokenizer(), rows=4)
    found = decoder.decode(short)
    assert decoder.describe()["length"] == 256
    decoder.decode([replace(prompt, max_new=3000) for prompt in PROMPTS])
    assert decoder.decode(short) == found
    assert decoder.describe()["length"] == 3072
    assert decoder.describe()["prepared_seconds"] == 0


def test_a_capture_that_fails_falls_back_and_leaves_the_gpu_usable(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = on_gpu("Llama")
    mlp = model.model.layers[0].mlp
    usual = mlp.forward
    mlp.forward = lambda x: usual(x) if x.sum().item() != 123 else x  # waits for the GPU
    decoder = Decoder(model, tokenizer(), rows=4)
    with caplog.at_level(logging.WARNING):
        assert ids_of(decoder.decode(PROMPTS)) == generated(model, PROMPTS)
    assert len(caplog.records) == 1
    assert decoder.describe()["way"] == "eager"
    assert decoder.describe()["why_eager"]
    mlp.forward = usual
    again = Decoder(model, tokenizer(), rows=4)
    assert ids_of(again.decode(PROMPTS)) == generated(model, PROMPTS)
    assert again.describe()["way"] == "captured"


def test_adapters_and_mixed_precision_are_captured() -> None:
    import accelerate
    import peft

    model = peft.get_peft_model(on_gpu("Llama"), peft.LoraConfig(r=4, target_modules=["q_proj"]))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_()
    model.eval()
    decoder = Decoder(model, tokenizer(), rows=4)
    assert ids_of(decoder.decode(PROMPTS)) == generated(model.base_model, PROMPTS)
    assert decoder.describe()["way"] == "captured"
    with model.disable_adapter():
        assert ids_of(decoder.decode(PROMPTS)) == generated(model.base_model, PROMPTS)
    prepared = accelerate.Accelerator(mixed_precision="bf16").prepare(model)
    decoder = Decoder(prepared, tokenizer(), rows=4)
    first = decoder.decode(PROMPTS)
    assert decoder.describe()["way"] == "captured", decoder.describe()
    with torch.no_grad():
        for weight in model.parameters():
            weight.neg_()
            weight[..., 0] += 1
    # Casts of the weights are part of the graph: they are not those of before.
    after = decoder.decode(PROMPTS)
    assert after == Decoder(prepared, tokenizer(), rows=4).decode(PROMPTS) != first


def test_memory_that_does_not_suffice_for_a_batch_halves_it() -> None:
    model = on_gpu("Llama", max_position_embeddings=65536, vocab_size=64)
    asked = [Prompt((9 + i,), max_new=8192) for i in range(8)]
    model.generation_config.eos_token_id = list(range(3, 64))  # ends at once; the cache is large
    rows = 8 * 4096
    bytes_needed = rows * 8256 * 2 * 2 * 2 * 8 * 4
    total = torch.cuda.mem_get_info()[1]
    fraction = min(1.0, bytes_needed / 3 / total)
    torch.cuda.set_per_process_memory_fraction(fraction)
    try:
        decoder = Decoder(model, tokenizer(), rows=rows)
        found = decoder.decode(asked)
        assert ids_of(found) == generated(model, asked)
        assert decoder.describe()["splits"] >= 1
        assert decoder.describe()["way"] == "captured"
        assert decoder.describe()["rows"] < rows
        decoder.release()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_what_was_released_is_captured_again_without_a_check() -> None:
    model = on_gpu("Llama")
    asked = [Prompt(tuple(range(3, 63)), max_new=4) for _ in range(3)]  # fills its columns
    decoder = Decoder(model, tokenizer(), rows=4)
    found = decoder.decode(asked)
    assert decoder.describe()["length"] == 64
    decoder.release()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs.StaticBatch, "check", None)
        assert decoder.decode(asked) == found
    assert decoder.describe()["prepared_seconds"] > 0
    assert ids_of(found) == generated(model, asked)


def test_release_gives_the_memory_back() -> None:
    model = on_gpu("Llama")
    before = torch.cuda.memory_allocated()
    decoder = Decoder(model, tokenizer(), rows=256)
    decoder.decode([Prompt((9,), max_new=1024)])
    assert torch.cuda.memory_allocated() > before + 2**20
    decoder.release()
    assert torch.cuda.memory_allocated() < before + 2**20 + 64 * 2**20


def evals_of(folder: Path, keep_cache: Any, every_steps: int = 1) -> PeriodicEval:
    """Evals of a model in training, whose cache takes half a gigabyte."""
    samples = [Sample(f"{i}", {"question": f"w{i} w{i + 1}"}) for i in range(8)]
    builder = live_model(
        tokenizer(), lambda trajectory, sample: 1.0, max_new=4000, rows=64, keep_cache=keep_cache
    )
    return PeriodicEval(samples, builder, every_steps=every_steps, run_dir=folder)


def evaluate(periodic: PeriodicEval, step: int, model: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # Ends after a few tokens; the cache is of the longest.
        patch.setattr(model.generation_config, "eos_token_id", list(range(3, 64)))
        point = periodic.maybe_run(step, model)
    assert point is not None
    assert point.skipped is None, point.skipped
    assert point.decoding is not None
    assert point.decoding["way"] == "captured"


def train_step(model: Any, activations: float) -> None:
    ids = torch.arange(8, 24, device="cuda").view(1, -1)
    held = torch.ones(int(activations), dtype=torch.uint8, device="cuda")
    model(ids, labels=ids).loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.1 * weight.grad
            weight.grad = None
    del held


def model_after_workspaces(folder: Path) -> Any:
    """A model to train, once CUDA's libraries have the memory that they never give back."""
    # Two key heads of 32 in four layers: 64 rows of 4,096 tokens are half a gigabyte.
    sizes = {"max_position_embeddings": 8192, "num_hidden_layers": 4, "head_dim": 32}
    model = on_gpu("Llama", **sizes)
    train_step(model, 0)
    evaluate(evals_of(folder, False), 1, model)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    return on_gpu("Llama", **sizes)


@pytest.mark.parametrize(("keep_cache", "kept"), [(False, False), ("auto", True), (True, True)])
def test_an_eval_leaves_the_gpu_as_it_found_it_or_keeps_its_cache(
    keep_cache: Any, kept: bool, tmp_path: Path
) -> None:
    model = model_after_workspaces(tmp_path / "before")
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    periodic = evals_of(tmp_path / "evals", keep_cache)
    for step in (1, 2):
        train_step(model, 0)
        evaluate(periodic, step, model)
    after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    grown = [a - b for a, b in zip(after, before, strict=True)]
    assert (max(grown) > 100e6) is kept, grown
    assert kept or max(grown) <= 64e6


@contextmanager
def limited_memory(room: float) -> Iterator[None]:
    """Let this process have so many bytes more than it has."""
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("keep_cache", [False, "auto"])
def test_training_at_the_edge_of_memory_does_not_fail_because_of_evals(
    keep_cache: Any, tmp_path: Path
) -> None:
    def train(periodic: PeriodicEval | None) -> Any:
        model = model_after_workspaces(tmp_path / f"before-{periodic is None}")
        with limited_memory(700e6):
            for step in range(1, 5):
                train_step(model, 0.9 * 700e6)
                if periodic is not None:
                    evaluate(periodic, step, model)
        return [weight.detach().cpu() for weight in model.parameters()]

    alone, with_evals = train(None), train(evals_of(tmp_path / "evals", keep_cache))
    assert all(map(torch.equal, alone, with_evals))


@pytest.mark.parametrize("keep_cache", [False, "auto"])
def test_training_that_grows_gets_the_memory_of_graphs_before_it_needs_it(
    keep_cache: Any, tmp_path: Path
) -> None:
    kept = []

    def train(periodic: PeriodicEval | None) -> Any:
        model = model_after_workspaces(tmp_path / f"before-{periodic is None}")
        before = torch.cuda.memory_allocated()
        with limited_memory(3e9):
            for step in range(1, 30):  # evals are due at 1 and 2, then no more
                train_step(model, 50e6 if step < 3 else 100e6 * (step - 2))
                if periodic is None:
                    continue
                if step < 3:
                    evaluate(periodic, 100 * step, model)
                else:
                    assert periodic.maybe_run(200 + step, model) is None
                kept.append(torch.cuda.memory_allocated() > before + 100e6)
        return [weight.detach().cpu() for weight in model.parameters()]

    evals = evals_of(tmp_path / "evals", keep_cache, every_steps=100)
    alone, with_evals = train(None), train(evals)
    assert all(map(torch.equal, alone, with_evals))
    assert (kept[0], kept[1], kept[-1]) == (False, keep_cache == "auto", False), kept


def test_the_random_state_of_the_gpu_is_left_alone() -> None:
    model = on_gpu("Llama")
    before = torch.cuda.get_rng_state(), torch.get_rng_state()
    Decoder(model, tokenizer(), rows=4).decode(PROMPTS)
    after = torch.cuda.get_rng_state(), torch.get_rng_state()
    assert all(map(torch.equal, before, after))


def test_the_local_endpoint_answers_from_captured_steps() -> None:
    model = on_gpu("Llama")
    endpoint = LocalEndpoint(model, tokenizer(), max_batch=4)
    answers: dict[str, str] = {}

    async def ask(text: str) -> None:
        message = Message("user", text)
        answer = await endpoint.complete([message], Sampling(max_tokens=20), ())
        answers[text] = answer.message.text

    async def main() -> None:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for text in ("w1", "w2 w3", "w4 w5 w6", "w7", "w8 w9"):
                    group.start_soon(ask, text)
            assert endpoint._decoder.describe()["way"] == "captured"  # gone with the thread
            await endpoint.close()

    anyio.run(main)
    words = tokenizer()
    for text, answer in answers.items():
        chat = [{"role": "user", "content": text}]
        ids = words.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        [theirs] = generated(model, [Prompt(tuple(ids), 20)])
        assert answer == words.decode(list(theirs), skip_special_tokens=True)


def test_beside_a_training_graphs_are_replayed_and_nothing_else() -> None:
    model = on_gpu("Llama")
    decoder = Decoder(model, tokenizer(), rows=4)
    hot = [Prompt(p.ids, 20, temperature=1.0, seed=i) for i, p in enumerate(PROMPTS)]
    with background_thread(), pytest.raises(NeedsTrainerThread, match="not captured yet"):
        decoder.decode(PROMPTS)
    found = decoder.decode(PROMPTS)
    sampled = decoder.decode(hot)
    flags = torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    seen: list[Any] = []

    def beside() -> None:
        with torch.cuda.stream(torch.cuda.Stream()), torch.no_grad(), background_thread():
            seen.append(decoder.decode(PROMPTS))
            seen.append(
                (torch.backends.cuda.flash_sdp_enabled(), torch.backends.cuda.cudnn_sdp_enabled())
            )
            try:
                seen.append(decoder.decode(hot))
            except NeedsTrainerThread as problem:
                seen.append(str(problem))

    thread = threading.Thread(target=beside)
    thread.start()
    thread.join()
    assert seen[0] == found
    assert seen[1] == flags
    assert seen[2] == sampled


@pytest.mark.parametrize("family", ["Llama", "GPT2", "Mistral"])
def test_likelihoods_are_those_of_the_cpu(family: str) -> None:
    texts = [
        [Continuation(" ".join(f"w{i}" for i in range(3 + n)), f" w{9 + k} w{n}") for k in range(4)]
        for n in range(5)
    ]
    found = [
        LikelihoodModel(model_of(family).to(device), tokenizer(), "it").rate(texts)
        for device in ("cpu", "cuda")
    ]
    for ours, theirs in zip(*found, strict=True):
        assert isinstance(ours, Rating), ours
        assert isinstance(theirs, Rating), theirs
        assert [one.logprob for one in ours.likelihoods] == pytest.approx(
            [one.logprob for one in theirs.likelihoods], abs=1e-3
        )
