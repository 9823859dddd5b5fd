"""A transformers model in this process. The model is random and tiny; the decoding is real."""

from __future__ import annotations

import copy
import functools
import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import heldout.models.local as local
from heldout import Message, Sample, Sampling
from heldout._live.weights import fingerprint
from heldout.analysis import compare
from heldout.errors import (
    ContextFull,
    EndpointError,
    FatalEndpointError,
    ResumeMismatch,
    SystemicFailure,
)
from heldout.models.local import LocalEndpoint, version_on_disk
from heldout.types import Completion, Usage
from tests.conftest import both_loops
from tests.models.asking import completing, evaluating
from tests.tiny_model import CONTEXT, WORDS, save_tiny_model, tiny_model

Run = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Matrices this small are slower in two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def tiny() -> tuple[Any, Any]:
    return tiny_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def full_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch starts when it is full, however slowly requests come in."""
    monkeypatch.setattr(local, "LINGER_SECONDS", 20.0)


PROMPTS = [" ".join(WORDS[i : i + 1 + (i * 7) % 13]) for i in range(12)]
GREEDY = Sampling(max_tokens=16)


def asking(
    endpoint: LocalEndpoint, prompts: Sequence[str], samplings: Sampling | Sequence[Sampling]
) -> Callable[[], Any]:
    """All at once: the answers, or what was raised instead."""
    each = [samplings] * len(prompts) if isinstance(samplings, Sampling) else samplings
    answers: list[Any] = [None] * len(prompts)

    async def one(place: int) -> None:
        try:
            answers[place] = await endpoint.complete(
                [Message("user", prompts[place])], each[place], ()
            )
        except EndpointError as problem:
            answers[place] = problem

    async def main() -> list[Any]:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for place in range(len(prompts)):
                    group.start_soon(one, place)
            await endpoint.close()
        return answers

    return main


@functools.cache
def generated(tiny: tuple[Any, Any], prompt: str, max_tokens: int) -> Completion:
    """What transformers itself makes of it, one prompt at a time."""
    model, tokenizer = tiny
    messages = [{"role": "user", "content": prompt}]
    ids = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=False
    )
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=max_tokens
    )
    new = out[0, ids.shape[1] :].tolist()
    return Completion(
        Message("assistant", tokenizer.decode(new, skip_special_tokens=True)),
        "stop" if new[-1] == 2 else "length",
        Usage(ids.shape[1], len(new)),
    )


# --- Greedy -------------------------------------------------------------------------------------


def test_a_batch_answers_as_one_at_a_time_and_as_transformers_does(
    run: Run, tiny: tuple[Any, Any], full_batches: None
) -> None:
    together = run(asking(LocalEndpoint(*tiny, max_batch=12), PROMPTS, GREEDY))
    alone = run(asking(LocalEndpoint(*tiny, max_batch=1), PROMPTS, GREEDY))
    theirs = [generated(tiny, prompt, 16) for prompt in PROMPTS]
    assert together == alone == theirs
    # The comparison means something: rows differ, and they end at different times.
    assert len({answer.message.content for answer in together}) > 6
    assert {answer.finish_reason for answer in together} == {"stop", "length"}
    assert len({answer.usage.prompt_tokens for answer in together}) > 4


def test_a_batch_is_no_larger_than_was_asked_for(tiny: tuple[Any, Any]) -> None:
    with Steps(tiny[0], hold_at=0) as steps:
        answers = anyio.run(asking(LocalEndpoint(*tiny, max_batch=5), PROMPTS, GREEDY))
    assert max(steps.sizes) <= 5
    assert answers == [generated(tiny, prompt, 16) for prompt in PROMPTS]


def test_a_stop_text_ends_the_turn_before_it(tiny: tuple[Any, Any]) -> None:
    whole = next(g for p in PROMPTS if len((g := generated(tiny, p, 16)).message.text.split()) > 8)
    prompt = next(p for p in PROMPTS if generated(tiny, p, 16) == whole)
    words = whole.message.text.split()
    stop = words[5]
    first = words.index(stop)
    before = whole.message.text.split(stop)[0]
    sampling = Sampling(max_tokens=16, stop=("never", stop))
    [answer, other] = anyio.run(asking(LocalEndpoint(*tiny), [prompt, prompt], [sampling, GREEDY]))
    assert answer.message.content == before
    assert answer.finish_reason == "stop"
    assert answer.usage.completion_tokens == first + 1
    assert other == whole


def test_a_turn_never_goes_beyond_the_context(tiny: tuple[Any, Any]) -> None:
    prompt = " ".join(WORDS[:50])  # and 3 of the template
    [answer] = anyio.run(asking(LocalEndpoint(*tiny), [prompt], Sampling(max_tokens=500)))
    assert answer.usage.prompt_tokens == 53
    assert answer.usage.completion_tokens <= CONTEXT - 53
    assert answer == generated(tiny, prompt, CONTEXT - 53)


# --- Sampled ------------------------------------------------------------------------------------


def seeded(seed: int | None) -> Sampling:
    return Sampling(temperature=2.0, top_p=0.95, max_tokens=12, seed=seed)


def test_seeds_make_rows_differ_and_no_seed_makes_runs_differ(tiny: tuple[Any, Any]) -> None:
    prompts = ["w1 w2"] * 8
    different = anyio.run(asking(LocalEndpoint(*tiny), prompts, [seeded(i) for i in range(8)]))
    assert len({answer.message.content for answer in different}) > 1
    same = anyio.run(asking(LocalEndpoint(*tiny), prompts, seeded(3)))
    assert len({answer.message.content for answer in same}) == 1
    unseeded = anyio.run(asking(LocalEndpoint(*tiny), prompts, seeded(None)))
    assert len({answer.message.content for answer in unseeded}) > 1


def test_the_random_state_of_torch_is_left_alone(tiny: tuple[Any, Any]) -> None:
    before = torch.get_rng_state()
    anyio.run(asking(LocalEndpoint(*tiny), PROMPTS, seeded(None)))
    anyio.run(asking(LocalEndpoint(*tiny), PROMPTS, seeded(1)))
    assert torch.equal(torch.get_rng_state(), before)


# --- What goes wrong ----------------------------------------------------------------------------


def test_a_prompt_that_cannot_be_answered_is_that_items_error_alone(
    run: Run, tiny: tuple[Any, Any]
) -> None:
    prompts = ["w1 w2", " ".join(["w1"] * CONTEXT), "w3", "forbidden"]
    first, long, third, refused = run(asking(LocalEndpoint(*tiny, name="tiny"), prompts, GREEDY))
    assert str(long) == f"the prompt has {CONTEXT + 3} tokens, tiny takes {CONTEXT}"
    assert "no such word" in str(refused)
    assert type(long) is ContextFull
    assert not isinstance(refused, FatalEndpointError)
    assert [first, third] == [generated(tiny, p, 16) for p in ("w1 w2", "w3")]


def test_a_model_that_fails_is_reported_to_all_it_failed_and_goes_on(
    run: Run, tiny: tuple[Any, Any]
) -> None:
    def fail(module: Any, args: Any) -> None:
        hook.remove()
        raise RuntimeError("out of memory")

    async def main() -> tuple[str, Completion]:
        endpoint = LocalEndpoint(*tiny, name="tiny")
        with anyio.fail_after(30):
            with pytest.raises(EndpointError) as caught:
                await endpoint.complete([Message("user", "w1")], GREEDY, ())
            answer = await endpoint.complete([Message("user", "w1")], GREEDY, ())
            await endpoint.close()
        return str(caught.value), answer

    hook = tiny[0].register_forward_pre_hook(fail)
    said, answer = run(main)
    assert said == "tiny: RuntimeError: out of memory"
    assert answer == generated(tiny, "w1", 16)


def test_without_a_chat_template_one_message_is_continued_and_two_are_refused(
    run: Run, tiny: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer = tiny
    monkeypatch.setattr(tokenizer, "chat_template", None)

    async def main() -> Completion:
        endpoint = LocalEndpoint(model, tokenizer)
        with anyio.fail_after(30):
            answer = await endpoint.complete([Message("user", "w1 w2")], GREEDY, ())
            with pytest.raises(FatalEndpointError, match="has no chat template"):
                await endpoint.complete([Message("user", "w1")] * 2, GREEDY, ())
            with pytest.raises(EndpointError, match="the prompt has no tokens"):
                await endpoint.complete([Message("user", "")], GREEDY, ())
            await endpoint.close()
        return answer

    assert run(main).usage.prompt_tokens == 2


# --- Coming and going ---------------------------------------------------------------------------


class Steps:
    """Watches the model's steps, and holds it at one of them until `go_on`."""

    def __init__(self, model: Any, hold_at: int) -> None:
        self.sizes: list[int] = []
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._hold_at, self._in_time = hold_at, True
        self._hook = model.register_forward_pre_hook(self._step, with_kwargs=True)

    def _step(self, module: Any, args: Any, kwargs: Any) -> None:
        if not kwargs["use_cache"]:
            return  # a new shape is checked
        self.sizes.append(len(kwargs["input_ids"]))
        if len(self.sizes) == self._hold_at:
            self.reached.set()
            self._in_time = self.go_on.wait(20)

    async def wait(self) -> None:
        assert await anyio.to_thread.run_sync(self.reached.wait, 20)

    def __enter__(self) -> Steps:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._hook.remove()
        assert self._in_time, "nobody let the model go on"


@pytest.fixture(scope="module")
def long_winded(tiny: tuple[Any, Any]) -> str:
    """A prompt whose answer does not end by itself."""
    return next(p for p in PROMPTS if generated(tiny, p, 16).finish_reason == "length")


@both_loops
def test_who_gives_up_leaves_the_batch(
    run: Run, tiny: tuple[Any, Any], long_winded: str, full_batches: None
) -> None:
    answers: list[Completion] = []

    async def main() -> None:
        endpoint = LocalEndpoint(*tiny, max_batch=2)

        async def ask() -> None:
            answers.append(await endpoint.complete([Message("user", long_winded)], GREEDY, ()))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as staying:
                staying.start_soon(ask)
                async with anyio.create_task_group() as leaving:
                    leaving.start_soon(ask)
                    await steps.wait()
                    leaving.cancel_scope.cancel()
                steps.go_on.set()
            await endpoint.close()

    with Steps(tiny[0], hold_at=4) as steps:
        run(main)
    # First what both prompts share, then both rows, and from the cancellation on only one.
    assert steps.sizes[:4] == [1, 2, 2, 2]
    assert set(steps.sizes[4:]) == {1}
    assert answers == [generated(tiny, long_winded, 16)]


@both_loops
def test_an_answer_does_not_wait_for_the_longest_of_its_batch(
    run: Run, tiny: tuple[Any, Any], long_winded: str, full_batches: None
) -> None:
    async def main() -> None:
        endpoint = LocalEndpoint(*tiny, max_batch=3)

        async def ask(prompt: str, max_tokens: int) -> Completion:
            message = Message("user", prompt)
            return await endpoint.complete([message], Sampling(max_tokens=max_tokens), ())

        async def ask_for_too_much() -> None:
            with pytest.raises(EndpointError, match="the prompt has"):
                await ask(" ".join(["w1"] * CONTEXT), 1)
            early.append("refused")

        async def ask_for_little() -> None:
            await ask(long_winded, 1)
            early.append("short")

        early: list[str] = []
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(ask, long_winded, 16)
                async with anyio.create_task_group() as first:
                    first.start_soon(ask_for_little)
                    first.start_soon(ask_for_too_much)
                # Both are here although the third is held in the middle of its turn.
                assert sorted(early) == ["refused", "short"]
                assert not steps.go_on.is_set()
                steps.go_on.set()
            await endpoint.close()

    with Steps(tiny[0], hold_at=5) as steps:
        run(main)


EARLIER: set[threading.Thread] = set()
"""Threads that tests of other modules have left in this process."""


@pytest.fixture(autouse=True)
def _earlier_threads() -> None:
    EARLIER.update(threading.enumerate())


def model_threads() -> list[threading.Thread]:
    now = threading.enumerate()
    return [t for t in now if t.name == "heldout-model" and t not in EARLIER]


@both_loops
def test_close_ends_the_thread_and_the_endpoint_can_be_used_again(
    run: Run, tiny: tuple[Any, Any]
) -> None:
    endpoint = LocalEndpoint(*tiny)

    async def main() -> Completion:
        with anyio.fail_after(30):
            await endpoint.close()  # never used: nothing to do
            answer = await endpoint.complete([Message("user", "w1")], GREEDY, ())
            assert len(model_threads()) == 1
            await endpoint.close()
            assert model_threads() == []
        return answer

    assert run(main) == run(main) == generated(tiny, "w1", 16)


@both_loops
def test_close_does_not_wait_for_answers_and_says_so_to_who_does(
    run: Run, tiny: tuple[Any, Any], long_winded: str
) -> None:
    said: list[str] = []

    async def main() -> None:
        endpoint = LocalEndpoint(*tiny, name="tiny", max_batch=1)

        async def ask() -> None:
            with pytest.raises(EndpointError) as caught:
                await endpoint.complete([Message("user", long_winded)], GREEDY, ())
            said.append(str(caught.value))

        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                group.start_soon(ask)  # in the middle of its turn
                await steps.wait()
                group.start_soon(ask)  # in the queue
                await anyio.wait_all_tasks_blocked()
                group.start_soon(endpoint.close)
                await anyio.wait_all_tasks_blocked()
                await ask()  # too late
                steps.go_on.set()
            assert model_threads() == []

    with Steps(tiny[0], hold_at=3) as steps:
        run(main)
    assert len(steps.sizes) == 3
    assert said == ["tiny is being closed"] + ["tiny was closed before it had answered"] * 2


def test_a_model_that_was_loaded_does_not_outlive_its_use(run: Run, folder: str) -> None:
    endpoint = LocalEndpoint.load(folder)
    first = run(completing(endpoint, [Message("user", "w1")], GREEDY))
    alive: list[Any] = [thing for thing in gc.get_objects() if type(thing) is LlamaForCausalLM]
    assert not [model for model in alive if Path(model.name_or_path) == Path(folder)]
    assert run(completing(endpoint, [Message("user", "w1")], GREEDY)) == first


# --- Through evaluate ---------------------------------------------------------------------------


def evaluated(
    asked: Sequence[Sample], endpoint: Any, folder: Path, **settings: Any
) -> Callable[[], Any]:
    settings = {"sampling": GREEDY, "timeout": 30.0, "max_error_rate": 0.1, **settings}
    return evaluating(asked, endpoint, folder, **settings)


def test_a_folder_is_evaluated(
    run: Run, tiny: tuple[Any, Any], folder: str, tmp_path: Path
) -> None:
    asked = [
        Sample(f"s{i}", {"prompt": prompt}, generated(tiny, prompt, 16).message.text)
        for i, prompt in enumerate(PROMPTS)
    ]
    asked.append(Sample("long", {"prompt": " ".join(["w1"] * CONTEXT)}))
    report = run(evaluated(asked, f"hf:{folder}", tmp_path))
    assert (report.summary["n"], report.summary["n_errors"]) == (13, 1)
    assert report.summary["mean_scored"] == 1.0
    assert "endpoint: the prompt has 67 tokens" in str(report.results[12].error)
    assert {result.trajectory.stop.truncated for result in report.results[:12]} == {True, False}
    described = {"kind": "local", "model": folder, "max_batch": 16}
    assert report.config["endpoint"] == {**described, "version": version_on_disk(folder)}
    assert model_threads() == []


def spoiled(folder: str, tmp_path: Path, what: str) -> str:
    bad = tmp_path / "bad"
    if what == "half the weights":
        shutil.copytree(folder, bad)
        weights = bad / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    return str(bad)


@pytest.mark.parametrize("what", ["no folder", "half the weights"])
def test_what_cannot_be_loaded_ends_the_run_at_once(
    run: Run, folder: str, tmp_path: Path, what: str
) -> None:
    path = spoiled(folder, tmp_path, what)
    asked = [Sample(f"s{i}", {"prompt": "w1"}) for i in range(50)]
    with pytest.raises(SystemicFailure, match=r"cannot load a model from .*/bad: \w") as caught:
        run(evaluated(asked, f"hf:{path}", tmp_path / "runs", max_concurrent=4))
    assert "\n" not in str(caught.value)
    journal = tmp_path / "runs" / "run" / "results.jsonl"
    assert len(journal.read_bytes().splitlines()) <= 1 + 4
    assert model_threads() == []


# --- Which model it is --------------------------------------------------------------------------


def overwrite(folder: str) -> None:
    """Other weights, under the same name."""
    model = tiny_model()[0]
    with torch.no_grad():
        model.lm_head.weight.mul_(-1)
    model.save_pretrained(folder)


def test_a_turn_is_as_short_as_the_default_where_no_limit_is_set(run: Run, folder: str) -> None:
    endpoint = LocalEndpoint.load(folder, default_max_tokens=3)
    longest = max(
        run(asking(endpoint, PROMPTS, Sampling())), key=lambda c: c.usage.completion_tokens
    )
    assert (longest.usage.completion_tokens, longest.finish_reason) == (3, "length")


def test_a_model_that_was_overwritten_is_another_one(run: Run, tmp_path: Path) -> None:
    folder = save_tiny_model(tmp_path / "model")
    asked = [Sample(f"s{i}", {"prompt": prompt}) for i, prompt in enumerate(PROMPTS[:3])]
    first = run(evaluated(asked, f"hf:{folder}", tmp_path / "a"))
    run(evaluated(asked, f"hf:{folder}", tmp_path / "a", resume=True))
    overwrite(folder)
    with pytest.raises(ResumeMismatch, match=r"the model has changed \(version \w{16},"):
        run(evaluated(asked, f"hf:{folder}", tmp_path / "a", resume=True))
    second = run(evaluated(asked, f"hf:{folder}", tmp_path / "b"))
    versions = [report.config["endpoint"]["version"] for report in (first, second)]
    assert compare(first, second).model_versions == (str(folder), *versions)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_answers_are_of_the_weights_that_were_loaded_whatever_is_written_to_the_file(
    name: str, run: Run, tmp_path: Path
) -> None:
    """In place, as large as before and with the same times: the file may be mapped into memory."""
    folder = Path(save_tiny_model(tmp_path / "model"))
    path = folder / "model.safetensors"
    if name.endswith(".bin"):
        torch.save(load_file(path), folder / name)
        path.unlink()
        path = folder / name
    asked = [Sample(f"s{i}", {"prompt": prompt}) for i, prompt in enumerate(PROMPTS)]
    expected = run(evaluated(asked, f"hf:{folder}", tmp_path / "a", max_concurrent=1))

    def zero_then_score(trajectory: Any, sample: Sample) -> float:
        times, size = path.stat(), path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 2)  # the header stays
            file.write(bytes(size // 4))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        return 1.0

    settings: dict[str, Any] = {"sampling": GREEDY, "max_concurrent": 1}
    overwritten = evaluating(asked, f"hf:{folder}", tmp_path / "b", zero_then_score, **settings)
    found = run(overwritten)
    answers = [[r.trajectory.answer for r in report.results] for report in (expected, found)]
    assert answers[0] == answers[1]


def test_a_model_that_is_replaced_while_it_is_opened_answers_nothing(
    run: Run, tmp_path: Path
) -> None:
    folder = save_tiny_model(tmp_path)
    endpoint = LocalEndpoint.load(folder)
    endpoint.describe()
    overwrite(folder)

    with pytest.raises(FatalEndpointError, match="was replaced after"):
        run(completing(endpoint, [Message("user", "w1")], GREEDY))


def test_the_version_is_of_what_is_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save_tiny_model(folder)
    before = version_on_disk(str(folder))
    assert before is not None
    (folder / "optimizer.pt").write_bytes(b"x")
    (folder / "trainer_state.json").write_text("{}")
    assert version_on_disk(str(folder)) == before
    folder = folder.rename(tmp_path / "moved")
    assert version_on_disk(str(folder)) == before
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        content, stat = (folder / name).read_bytes(), (folder / name).stat()
        (folder / name).write_bytes(content[:-1] + b" ")
        os.utime(folder / name, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        assert version_on_disk(str(folder)) != before
        (folder / name).write_bytes(content)
        assert version_on_disk(str(folder)) == before


def test_the_version_of_an_adapter_has_that_of_its_model(tmp_path: Path) -> None:
    base = save_tiny_model(tmp_path / "base")
    adapted = get_peft_model(
        AutoModelForCausalLM.from_pretrained(base), LoraConfig(target_modules=["q_proj"])
    )
    adapted.save_pretrained(tmp_path / "adapter")
    before = version_on_disk(str(tmp_path / "adapter"))
    assert before is not None
    overwrite(base)
    assert version_on_disk(str(tmp_path / "adapter")) != before
    shutil.rmtree(base)
    assert version_on_disk(str(tmp_path / "adapter")) is None


def test_a_model_in_memory_is_known_by_its_weights(run: Run, tmp_path: Path) -> None:
    model, tokenizer = tiny_model()
    asked = [Sample("s", {"prompt": "w1"})]
    report = run(evaluated(asked, LocalEndpoint(model, tokenizer), tmp_path))
    assert report.config["endpoint"]["version"] == fingerprint(model)
    run(evaluated(asked, LocalEndpoint(*tiny_model()), tmp_path, resume=True))
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    with pytest.raises(ResumeMismatch, match="the model has changed"):
        run(evaluated(asked, LocalEndpoint(model, tokenizer), tmp_path, resume=True))


def closing_over(held: Any) -> Any:
    def answer(messages: Any) -> str:
        return str(held is None)

    return answer


@pytest.mark.parametrize(
    "make",
    [
        lambda model: closing_over({"actor": model}),
        lambda model: functools.partial(lambda held, messages: "x", model),
    ],
    ids=["closure", "partial"],
)
def test_a_function_is_known_by_the_weights_of_the_model_in_it(
    run: Run, tmp_path: Path, make: Any
) -> None:
    asked, model = [Sample("s", {"prompt": "w1"})], torch.nn.Linear(2, 2)
    run(evaluated(asked, make(model), tmp_path))
    run(evaluated(asked, make(copy.deepcopy(model)), tmp_path, resume=True))
    with pytest.raises(ResumeMismatch, match="or the model in it, has changed"):
        run(evaluated(asked, make(torch.nn.Linear(2, 2)), tmp_path, resume=True))
    unreadable = make(torch.nn.Linear(2, 2, device="meta"))
    run(evaluated(asked, unreadable, tmp_path / "meta"))
    with pytest.raises(ResumeMismatch, match="the weights of .* cannot be read"):
        run(evaluated(asked, unreadable, tmp_path / "meta", resume=True))


# --- The chat template --------------------------------------------------------------------------


def test_a_request_has_the_template_s_keywords_of_its_own(run: Run, tiny: tuple[Any, Any]) -> None:
    model, tokenizer = tiny[0], copy.deepcopy(tiny[1])
    tokenizer.chat_template += "{% if enable_thinking is false %} w1 w2{% endif %}"

    def asked(**fields: Any) -> Any:
        sampling = Sampling(max_tokens=4, extra_body=fields or None)
        [answer] = run(asking(LocalEndpoint(model, tokenizer), PROMPTS[:1], sampling))
        return answer

    silent = asked(chat_template_kwargs={"enable_thinking": False})
    assert silent.usage.prompt_tokens == asked().usage.prompt_tokens + 2
    assert "takes only chat_template_kwargs, a dict; got top_k" in str(asked(top_k=3))
    assert "enable_thought" in str(asked(chat_template_kwargs={"enable_thought": True}))
