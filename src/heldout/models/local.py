"""A transformers model in this process. Waiting requests are answered in one batch.

The model runs in a thread of its own, which takes the requests in its queue and decodes them
together (`heldout._live.decoding`). A row that is done is answered at once, and a row whose attempt
was cancelled leaves the batch.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import anyio
import anyio.to_thread

from heldout._core.aio import wait_for
from heldout._core.config import Sampling
from heldout._core.current_attempt import add_queued
from heldout._core.extras import missing_extra
from heldout._live.decoding import Decoder
from heldout._live.decoding.chat import ChatModel, answer_all
from heldout._live.decoding.likelihood import LikelihoodModel
from heldout._live.decoding.model import explain_not_finite
from heldout._live.packed import parts_of_tensor
from heldout._live.weights import explain_no_fingerprint, fingerprint, named_tensors
from heldout.errors import EndpointError, FatalEndpointError
from heldout.models.base import RatesContinuations
from heldout.store.fingerprint import describe_tokenizer
from heldout.types import Completion, Continuation, Message, Rating, ToolSpec

log = logging.getLogger("heldout")

JUST_WRITTEN_NS = 2_000_000_000
"""Longer than the ticks of a file's times: 10 ms on Linux, up to two seconds elsewhere."""
LINGER_SECONDS = 0.01
"""How long a batch that is not full waits for more requests."""


@dataclass(slots=True, eq=False)
class _QueuedTurn:
    messages: tuple[Message, ...]
    sampling: Sampling
    tools: tuple[ToolSpec, ...]
    answer: Future[Completion]
    served_at: float | None = None
    """When the batch began that it is answered in."""


@dataclass(slots=True, eq=False)
class _QueuedRating:
    continuations: tuple[Continuation, ...]
    answer: Future[Rating]
    served_at: float | None = None


class LocalEndpoint(RatesContinuations):
    """A transformers model."""

    def __init__(
        self, model: Any, tokenizer: Any, *, name: str = "local", max_batch: int = 16
    ) -> None:
        """Use a model that is already in memory; `LocalEndpoint.load` is for one on disk.

        Args:
            model: A causal language model of transformers.
            tokenizer: Its tokenizer.
            name: What to call it in reports and messages.
            max_batch: How many requests are answered at once.
        """
        self._model, self._tokenizer = model, tokenizer
        self._name, self._max_batch = name, max_batch
        self._default_max_tokens: int | None = None
        self._source: str | None = None
        self._version: str | None = None
        self.read_version: Callable[[], str | None] = lambda: None
        """Of a model on disk: returns the version of its files, as they are now."""
        self._tokenizer_described: tuple[tuple[int, str], dict[str, Any]] | None = None
        self._queue: queue.SimpleQueue[_QueuedTurn | _QueuedRating | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._is_finite = False
        """Whether the weights have been looked at since the last run began."""

    @classmethod
    def load(
        cls,
        path: str,
        *,
        name: str | None = None,
        max_batch: int = 16,
        default_max_tokens: int | None = None,
    ) -> Self:
        """Use a model on disk. Its weights are read with the first request.

        Args:
            path: A folder, or a name on the hub.
            name: What to call it in reports and messages; `path` by default.
            max_batch: How many requests are answered at once.
            default_max_tokens: Longest turn where the sampling sets none; 512 by default.

        Raises:
            InvalidInput: If torch or transformers is not installed.
        """
        try:
            import torch  # noqa: F401
            import transformers  # noqa: F401
        except ImportError as missing:
            raise missing_extra(
                f"a local model needs torch and transformers ({missing.name} is missing)", "local"
            ) from None
        endpoint = cls(None, None, name=name or path, max_batch=max_batch)
        endpoint._source, endpoint._default_max_tokens = path, default_max_tokens
        endpoint.read_version = partial(version_on_disk, path)
        return endpoint

    def describe(self) -> dict[str, Any]:
        """Describe the model for the report.

        Returns:
            Among others its `version`, a hash of its files or of its weights in memory; or
            `unknown`, why there is none.
        """
        if self._source is None:
            self._version, self._is_finite = fingerprint(self._model), False
            identity = {"version": self._version, **self._tokenizer_identity()}
        else:
            self._version = self._version or self.read_version()
            identity = {"version": self._version}
        if self._version is None:
            why = None if self._model is None else explain_no_fingerprint(self._model)
            reason = f": {why}" if why else ""
            identity = {"unknown": f"the weights of {self._name} cannot be read{reason}"}
        if self._default_max_tokens is not None:
            identity["default_max_tokens"] = self._default_max_tokens
        return {"kind": "local", "model": self._name, "max_batch": self._max_batch, **identity}

    def _tokenizer_identity(self) -> dict[str, Any]:
        # To hash a vocabulary takes longer than to hash weights: once, unless tokens are added.
        template = getattr(self._tokenizer, "chat_template", None)
        state = len(self._tokenizer), json.dumps(template, sort_keys=True, default=str)
        if self._tokenizer_described is None or self._tokenizer_described[0] != state:
            self._tokenizer_described = state, describe_tokenizer(self._tokenizer)
        return self._tokenizer_described[1]

    async def complete(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[ToolSpec]
    ) -> Completion:
        """Take one model turn; see `Endpoint`."""
        if sampling.max_tokens is None and self._default_max_tokens is not None:
            sampling = replace(sampling, max_tokens=self._default_max_tokens)
        request = _QueuedTurn(tuple(messages), sampling, tuple(tools), Future())
        with self._queued(request):
            return await wait_for(request.answer)

    async def rate(self, continuations: Sequence[Continuation]) -> Rating:
        """Return the likelihoods of given continuations; see `RatesContinuations`.

        Each request is a batch of its own. In half precision numbers depend on the shape of the
        batch, and which requests wait in the queue depends on timing.
        """
        request = _QueuedRating(tuple(continuations), Future())
        with self._queued(request):
            return await wait_for(request.answer)

    @contextmanager
    def _queued(self, request: _QueuedTurn | _QueuedRating) -> Iterator[None]:
        """Put a request in the queue, and count how long it was there."""
        asked = time.perf_counter()
        self._enqueue(request)
        try:
            yield
        finally:
            served = time.perf_counter() if request.served_at is None else request.served_at
            add_queued(served - asked)

    def _enqueue(self, request: _QueuedTurn | _QueuedRating) -> None:
        if self._closing:
            raise EndpointError(f"{self._name} is being closed")
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="heldout-model", daemon=True)
            self._thread.start()
        self._queue.put(request)

    async def close(self) -> None:
        """End the model's thread, and forget a model that was loaded."""
        if self._thread is None or self._closing:
            return
        self._closing = True
        self._queue.put(None)
        with anyio.CancelScope(shield=True):  # half closed, it could not be used again
            await anyio.to_thread.run_sync(self._thread.join)
        for name in ("_decoder", "_likelihoods", "_chat"):
            self.__dict__.pop(name, None)
        if self._source is not None:
            self._model = self._tokenizer = None
            self._is_finite = False
            # A model of transformers is in a cycle, which would keep it until some later time.
            await anyio.to_thread.run_sync(gc.collect)
        self._thread, self._closing = None, False

    # --- The model's thread ---

    def _serve(self) -> None:
        while (batch := self._next_batch()) is not None:
            begun = time.perf_counter()
            for request in batch:
                request.served_at = begun
            problem: Exception = EndpointError(f"{self._name} was closed before it had answered")
            try:
                if not self._closing:
                    self._load()
                    self._answer(batch)
            except Exception as raised:  # noqa: BLE001 - the error of every request in the batch
                problem = raised
                if self._model is None and not isinstance(raised, EndpointError):
                    reason = (str(raised).strip() or type(raised).__name__).splitlines()[0]
                    problem = FatalEndpointError(
                        f"cannot load a model from {self._source}: {reason}"
                    )
            for request in batch:
                self._finish(request, problem)

    def _next_batch(self) -> list[_QueuedTurn | _QueuedRating] | None:
        first = self._queue.get()
        if first is None:
            return None
        batch, deadline = [first], time.monotonic() + LINGER_SECONDS
        while len(batch) < self._max_batch:
            try:
                request = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if request is None:
                self._queue.put(None)
                break
            batch.append(request)
        return batch

    def _load(self) -> None:
        if self._model is not None:
            self._check_finite(self._model)
            return
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        assert self._source is not None
        before = self._version or self.read_version()
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(self._source)
        model = AutoModelForCausalLM.from_pretrained(self._source, dtype="auto").to(device).eval()
        _give_own_memory(model)
        self._check_finite(model)
        self._version = self.read_version()
        if before not in (None, self._version):
            raise FatalEndpointError(
                f"the model in {self._source} was replaced after this run had recorded its version"
            )
        self._model = model

    def _check_finite(self, model: Any) -> None:
        if not self._is_finite and (reason := explain_not_finite(model)) is not None:
            raise FatalEndpointError(f"{self._name}: {reason}")
        self._is_finite = True

    def _answer(self, batch: list[_QueuedTurn | _QueuedRating]) -> None:
        for request in batch:
            if isinstance(request, _QueuedRating) and not request.answer.cancelled():
                [answer] = self._likelihoods.rate([request.continuations])
                assert answer is not None  # nothing stops it
                self._finish(request, answer)
        turns = [request for request in batch if isinstance(request, _QueuedTurn)]
        if not turns:
            return
        answer_all(
            self._chat,
            self._decoder,
            turns,
            # At once, without waiting for the slowest row of the batch.
            lambda row, answer: self._finish(turns[row], answer),
            keep_going=lambda: not self._closing,
            wanted=lambda row: not turns[row].answer.cancelled(),
        )

    def _finish(
        self, request: _QueuedTurn | _QueuedRating, answer: Completion | Rating | Exception
    ) -> None:
        with suppress(InvalidStateError):  # it is answered already, or its attempt was cancelled
            if not isinstance(answer, Exception):
                request.answer.set_result(answer)  # type: ignore[arg-type]  # each its own
                return
            if not isinstance(answer, EndpointError):
                answer = EndpointError(f"{self._name}: {type(answer).__name__}: {answer}")
            request.answer.set_exception(answer)

    @cached_property
    def _decoder(self) -> Decoder:
        # Made by the model's thread, once the model is loaded.
        return Decoder(self._model, self._tokenizer, rows=self._max_batch)

    @cached_property
    def _likelihoods(self) -> LikelihoodModel:
        # Not in `max_batch` rows: how many are in flight must not change a number.
        return LikelihoodModel(self._model, self._tokenizer, self._name)

    @cached_property
    def _chat(self) -> ChatModel:
        return ChatModel(self._model, self._tokenizer, self._name)


def _give_own_memory(model: Any) -> None:
    """Copy weights that are files mapped into memory: they would change with their files."""
    import torch

    copied: set[int] = set()
    for name, tensor in named_tensors(model) or ():
        for _, part in parts_of_tensor(tensor, name):
            is_copy = isinstance(part, str) or id(part) in copied
            if not is_copy and part.device.type == "cpu":
                copied.add(id(part))
                with torch.no_grad():
                    part.data = part.data.clone()


# --- Versions -----------------------------------------------------------------------------------

_READ = (".json", ".safetensors", ".bin", ".pt", ".pth", ".model", ".txt", ".jinja", ".py")
# Files that a trainer writes next to a model, to resume from.
_NOT_READ = ("optimizer", "scheduler", "rng_state", "training_args", "trainer_state", "scaler")


def version_on_disk(source: str) -> str | None:
    """Hash the files that a model is loaded from, for an adapter with those of its base model.

    A name on the hub has the commit in the cache instead. None if it cannot be known.
    """
    folder = Path(source)
    try:
        if not folder.is_dir():
            return _commit(source)
        files = sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")])
        read = [f for f in files if f.suffix in _READ and not f.name.startswith(_NOT_READ)]
        with ThreadPoolExecutor(4) as pool:
            digests = list(pool.map(_digest_once, read))
        names = [str(file.relative_to(folder)) for file in read]
        hashes = [list(pair) for pair in zip(names, digests, strict=True)]
        if (adapter := folder / "adapter_config.json").exists():
            base = version_on_disk(json.loads(adapter.read_bytes())["base_model_name_or_path"])
            if base is None:
                return None
            hashes.append(["base", base])
    except (OSError, ValueError, KeyError, TypeError) as problem:
        log.debug("%s has no version: %s: %s", source, type(problem).__name__, problem)
        return None
    if not hashes:
        return None
    return hashlib.blake2b(json.dumps(hashes).encode(), digest_size=8).hexdigest()


def _digest_once(path: Path) -> str:
    """Hash a file, once for as long as its inode, size and times stay the same.

    A file that was written to a moment ago could be again without a change of its times.
    """
    stat = path.stat()
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) < JUST_WRITTEN_NS:
        return _digest.__wrapped__(path)
    return _digest(path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)


@lru_cache(maxsize=1024)
def _digest(path: Path, *stat: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _commit(source: str) -> str | None:
    from transformers.utils import cached_file

    folder = Path(cached_file(source, "config.json")).parent
    return folder.name if folder.parent.name == "snapshots" else None
