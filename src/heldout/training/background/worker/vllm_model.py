"""A model in vLLM as the model of an eval worker: `EvalWorker(…, engine="vllm")`.

Weights go from the shared memory of the training run to vLLM's own processes, which map it, and
through vLLM's own loader, which fuses, casts and shards them. Each update has the hash of what was
sent as its name; vLLM puts that name on every answer, and an answer of other weights is an error.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from heldout._live.decoding.chat import ChatModel
from heldout._live.decoding.likelihood import LikelihoodModel, make_rating
from heldout._live.decoding.model import explain_not_finite_tensors
from heldout._live.decoding.turn import Generation, Prompt
from heldout._live.rendering.chat_templates import ChatFormat
from heldout._live.weights import fingerprint
from heldout.errors import InvalidInput
from heldout.models.batch import Answered, Request
from heldout.models.vllm_engine import VLLMEngine, check_settings, import_vllm
from heldout.training.background.worker.weight_buffer import BufferLayout, read_tensors

T = TypeVar("T")
POLL_SECONDS = 0.1
KeepGoing = Callable[[], bool]


class WeightLoader:
    """What vLLM's workers can do besides their own methods (`worker_extension_cls`)."""

    def heldout_load_weights(self, memory: str, raw_layout: dict[str, Any]) -> list[str]:
        """Load all weights; return the names of those that were not among them."""
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import (
            finalize_layerwise_reload,
            initialize_layerwise_reload,
        )

        worker: Any = self
        layout = msgspec.convert(raw_layout, BufferLayout)
        fd = os.open(memory, os.O_RDONLY)
        try:
            tensors = read_tensors(fd, layout)
        finally:
            os.close(fd)
        first_names = {spec.offset: spec.name for spec in reversed(layout.tensors)}  # of tied ones
        model = worker.model_runner.get_model()
        wanted = {name for name, _ in model.named_parameters()}
        with set_current_vllm_config(worker.vllm_config):
            initialize_layerwise_reload(model)
            loaded = model.load_weights((name, tensors[name]) for name in first_names.values())
            finalize_layerwise_reload(model, worker.model_config)
        if loaded is None:
            raise RuntimeError(f"{type(model).__name__} does not say which weights it has loaded")
        return sorted(wanted - set(loaded))


class VLLMModel:
    """A model in vLLM, whose weights are replaced before each eval.

    Args:
        source: A folder or a name on the hub, for the architecture and the first weights; or
            arguments of `vllm.AsyncEngineArgs`; `model` is that one.
    """

    def __init__(self, source: str | Mapping[str, Any]) -> None:
        settings = {"model": source} if isinstance(source, str) else dict(source)
        path = settings.pop("model", None)
        if not isinstance(path, str):
            raise InvalidInput("of vLLM's settings, model is the path of the model to load")
        check_settings(settings)
        loader = f"{WeightLoader.__module__}.{WeightLoader.__qualname__}"
        if settings.setdefault("worker_extension_cls", loader) != loader:
            raise InvalidInput("worker_extension_cls is how heldout sends the weights to vLLM")
        self._engine = VLLMEngine(path, settings)

    def start(self) -> None:
        """Start the engine, with the weights in its folder."""

        async def nothing() -> None:
            pass

        self._engine.call(nothing).result()

    def load(self, fd: int, layout: BufferLayout) -> str:
        """Replace all weights, and return their hash.

        Raises:
            InvalidInput: They are not all weights of the model, or not finite.
            EndpointError: vLLM could not load them.
        """
        if layout.adapters or layout.frozen:
            raise InvalidInput(
                "vLLM is sent whole weights, and the model in training has adapters; evaluate it "
                "without engine='vllm', or merge them into a copy of the model"
            )
        tensors = read_tensors(fd, layout)
        if (reason := explain_not_finite_tensors(tensors.items())) is not None:
            raise InvalidInput(reason)
        weights = fingerprint(tensors)
        assert weights is not None
        memory = f"/proc/{os.getpid()}/fd/{fd}"
        engine = self._engine
        if engine.failed:
            engine.close()
        try:
            missing = engine.call(
                lambda: engine.update(
                    weights, "heldout_load_weights", memory, msgspec.to_builtins(layout)
                )
            ).result()
            if names := sorted({name for part in missing for name in part}):
                raise InvalidInput(
                    f"the model in training has no weights for {', '.join(names[:3])} of vLLM's "
                    f"model in {engine.path}, {len(names)} in all"
                )
        except BaseException:
            engine.close()  # it may have loaded some of them
            raise
        return weights

    def bind_runner(self, tokenizer: Any, rows: int, format: ChatFormat) -> dict[str, Any]:
        """Return the fields of a `Runner` that answers with this model (`live_model`)."""
        name = "the model in training"
        chat = ChatModel(self._engine, tokenizer, name, format)
        likelihoods = LikelihoodModel(self._engine, tokenizer, name, chat=format)
        first: Request | None = None

        def answer(requests: Sequence[Request], keep_going: KeepGoing) -> Sequence[Answered]:
            nonlocal first
            first = first or requests[0]
            if any(request.continuations for request in requests):  # an eval has one of the two
                return self._rate(likelihoods, requests, keep_going)
            return self._answer(chat, requests, keep_going)

        def describe() -> dict[str, Any]:
            version = str(import_vllm().__version__)
            own = {"engine": "vllm", "vllm": version, "rows": rows, "dtype": self._engine.dtype}
            prompt = chat.show(first) if first is not None and first.messages else None
            return {**own, "prompt": prompt} if prompt else own

        return {"answer": answer, "describe": describe}

    def _answer(
        self, chat: ChatModel, requests: Sequence[Request], keep_going: KeepGoing
    ) -> Sequence[Answered]:
        answers: list[Answered] = [None] * len(requests)
        prompts: dict[int, Prompt] = {}
        for index, request in enumerate(requests):
            try:
                prompts[index] = chat.prompt(request)
            except Exception as problem:  # noqa: BLE001 - Jinja templates raise anything
                answers[index] = problem
        over = threading.Event()
        engine, waiting = self._engine, list(prompts.values())
        future = engine.call(lambda: engine.generate_together(waiting, lambda: not over.is_set()))
        turns = _wait(future, keep_going, over.set) or [None] * len(waiting)
        for (index, prompt), turn in zip(prompts.items(), turns, strict=True):
            if not isinstance(turn, Generation):
                answers[index] = turn
                continue
            try:
                answers[index] = chat.completion(requests[index], prompt, turn)
            except Exception as problem:  # noqa: BLE001 - the error of this sample
                answers[index] = problem
        return answers

    def _rate(
        self, likelihoods: LikelihoodModel, requests: Sequence[Request], keep_going: KeepGoing
    ) -> Sequence[Answered]:
        engine = self._engine

        async def rate(request: Request) -> Answered:
            try:
                pairs = [likelihoods.encode(each) for each in request.continuations]
                rated = [await engine.rate(pair) for pair in pairs]
                return make_rating(request.continuations, pairs, rated)
            except Exception as problem:  # noqa: BLE001 - the error of this sample
                return problem

        async def rate_all() -> list[Answered]:
            return list(await asyncio.gather(*map(rate, requests)))

        future = engine.call(rate_all)
        return _wait(future, keep_going, future.cancel) or [None] * len(requests)


def _wait(future: Future[T], keep_going: KeepGoing, stop: Callable[[], object]) -> T | None:
    """Wait for the engine's thread, and stop it where time is up; None if it was cancelled."""
    while True:
        try:
            return future.result(timeout=POLL_SECONDS)
        except TimeoutError:
            if not future.done() and not keep_going():
                stop()
            if future.cancelled():
                return None
