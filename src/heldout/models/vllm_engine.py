"""vLLM in processes of its own, beside this one: its async engine behind plain function calls.

The engine belongs to one event loop of asyncio, so it has a thread with that loop, whatever loop
the caller is in. vLLM starts child processes for scheduling and for the model. They do not see a
Ctrl-C, which would make errors of the requests in flight; `close` ends them, and so does the end of
this process, however that comes.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import secrets
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, TypeVar

from heldout._core.extras import missing_extra
from heldout._live.decoding.likelihood import EncodedPair, LogProb
from heldout._live.decoding.turn import Generation, Prompt
from heldout.errors import EndpointError, FatalEndpointError, InvalidInput, printable_error

T = TypeVar("T")

POLL_SECONDS = 0.05
END_SECONDS = 10.0
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
"""Set where the user has not: a start logs a hundred lines, and reports to vLLM's authors."""


def import_vllm() -> Any:
    """Import vLLM; InvalidInput if it is not installed, or does not run here."""
    try:
        with _own_environment():
            import vllm
            import vllm.v1.engine.async_llm
    except ImportError as problem:
        if getattr(problem, "name", None) == "vllm":
            raise missing_extra("vllm:PATH needs the package vllm", "vllm") from None
        raise InvalidInput(f"vLLM cannot be imported: {printable_error(problem)}") from problem
    return vllm


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what is no setting of vLLM's engine, before anything is started."""
    import_vllm()
    from vllm.engine.arg_utils import AsyncEngineArgs

    known = AsyncEngineArgs.__dataclass_fields__
    for name in settings:
        if name not in known or name == "model":
            raise InvalidInput(
                f"{name!r} is no setting of vLLM's engine (vllm.AsyncEngineArgs), such as "
                "max_model_len, dtype or tensor_parallel_size"
            )


class VLLMEngine:
    """One vLLM engine, started with its first request.

    Args:
        path: A folder, or a name on the hub.
        settings: Arguments of `vllm.AsyncEngineArgs`, besides the model.

    Attributes:
        loaded: Called in the engine's thread before the model is loaded, and after it.
    """

    def __init__(self, path: str, settings: Mapping[str, Any] | None = None) -> None:
        self.path, self.settings = path, dict(settings or {})
        self.loaded: Callable[[], None] = lambda: None
        self.version: str | None = None
        """What the weights are called that were sent last; answers of others are errors."""
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._engine: Any = None
        self._problem: str | None = None
        """Why there is no engine, and none will be started before it was closed."""
        self._others: set[int | None] | None = None
        """Child processes of others, while this one's are being started."""
        self._children: list[Any] = []
        self._closing = False

    # --- What a chat and a likelihood model read of a transformers model ---

    @property
    def config(self) -> Any:
        """The model's config, with a context as long as the engine's."""
        return SimpleNamespace(max_position_embeddings=self._engine.model_config.max_model_len)

    @property
    def generation_config(self) -> Any:
        """Which tokens end a turn."""
        config = self._engine.model_config
        own = config.try_get_generation_config().get("eos_token_id")
        text = config.hf_text_config
        return SimpleNamespace(eos_token_id=own or getattr(text, "eos_token_id", None))

    @property
    def dtype(self) -> str:
        """What the engine computes in."""
        return str(self._engine.model_config.dtype).removeprefix("torch.")

    # --- From any thread ---

    @property
    def failed(self) -> bool:
        """Whether it answers nothing more before it is closed."""
        return self._problem is not None

    def call(self, function: Callable[[], Awaitable[T]]) -> Future[T]:
        """Run a coroutine of this engine in its thread; cancelling the future cancels it."""
        if self._closing:
            raise EndpointError(f"{self.path} is being closed")
        if self._thread is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, name="heldout-vllm", daemon=True)
            self._thread.start()
        assert self._loop is not None

        async def run() -> T:
            await self._start()
            try:
                return await function()
            except EndpointError:
                raise
            except Exception as problem:
                raise self._explain(problem) from problem

        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        """End the engine and its processes; the next request starts another."""
        thread, loop = self._thread, self._loop
        if thread is None or loop is None or self._closing:
            return
        self._closing = True
        self._kill_starting()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        self._thread = self._loop = None
        self._problem = self.version = None
        self._closing = False

    # --- In its thread ---

    async def generate(self, prompt: Prompt) -> Generation:
        """Continue a prompt. Cancelled, the request leaves the batch."""
        output = await self._alive(self._finish(self._engine.generate(*self._request(prompt))))
        return self._read(output)

    async def generate_together(
        self, prompts: Sequence[Prompt], keep_going: Callable[[], bool]
    ) -> list[Generation | Exception | None]:
        """Continue prompts as one batch, which does not depend on timing.

        None stands for what was not finished when `keep_going` returned False.
        """
        results: list[Generation | Exception | None] = [None] * len(prompts)
        queues: dict[int, Any] = {}
        # The scheduler waits until all have arrived: else their batches would depend on which of
        # them come in while the first is being read.
        await self._alive(self._engine.pause_generation(mode="keep", clear_cache=False))
        try:
            for index, prompt in enumerate(prompts):
                ids, params, name = self._request(prompt)
                try:
                    queues[index] = await self._engine.add_request(name, ids, params)
                except Exception as problem:  # noqa: BLE001 - of this prompt, not of the others
                    results[index] = self._explain(problem)
        finally:
            await self._alive(self._engine.resume_generation())
        waiting = {asyncio.ensure_future(queue.get()): i for i, queue in queues.items()}
        try:
            while waiting and keep_going():
                done, _ = await asyncio.wait(
                    waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_COMPLETED
                )
                if not done and self._engine.errored:
                    break  # noticed only here if it died before they were sent
                for task in done:
                    index = waiting.pop(task)
                    try:
                        results[index] = self._read(task.result())
                    except Exception as problem:  # noqa: BLE001 - of this prompt, not of the others
                        results[index] = self._explain(problem)
        finally:
            for task, index in waiting.items():
                task.cancel()
                if self._engine.errored:
                    results[index] = self._explain(EndpointError())
                else:
                    await self._engine.abort(queues[index].request_id, internal=True)
            for queue in queues.values():
                queue.close()
        return results

    async def rate(self, pair: EncodedPair) -> LogProb:
        """Return the log-probability of a continuation, and whether it is the greedy one."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=1,  # none is refused
            temperature=0.0,
            prompt_logprobs=1,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        ids = [*pair.prompt, *pair.continuation]
        outputs = self._engine.generate({"prompt_token_ids": ids}, params, self._next_name())
        output = await self._alive(self._finish(outputs))
        self._check_version(output.outputs[0])
        given = list(output.prompt_logprobs or ())[len(pair.prompt) :]
        if len(given) != len(pair.continuation):
            raise EndpointError(f"vLLM gave {len(given)} of {len(pair.continuation)} logprobs")
        own = [step[token] for step, token in zip(given, pair.continuation, strict=True)]
        return sum(each.logprob for each in own), all(each.rank == 1 for each in own)

    async def update(self, version: str, method: str, *args: Any) -> list[Any]:
        """Have the workers call a method that replaces the weights, and forget what was cached.

        Args:
            version: What to call the new weights.
            method: A method of `worker_extension_cls`.
            args: Its arguments: plain values.

        Returns:
            What each worker returned.
        """
        self.version = None
        await self._alive(self._engine.pause_generation(mode="abort", clear_cache=True))
        try:
            returned: list[Any] = await self._alive(self._engine.collective_rpc(method, args=args))
            if not await self._alive(self._engine.reset_prefix_cache()):
                raise EndpointError("vLLM did not drop what it has cached of the former weights")
            await self._alive(self._engine.update_weight_version(version))
        except Exception:
            self._problem = "vLLM may have the weights of two steps in parts"
            raise
        finally:
            await self._alive(self._engine.resume_generation())
        self.version = version
        return returned

    async def _alive(self, call: Awaitable[T]) -> T:
        """Wait for a call, which vLLM leaves without an answer if its engine has just died."""
        task = asyncio.ensure_future(call)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=1.0)
                if not task.done() and self._engine.errored:
                    raise self._explain(EndpointError())
            return task.result()
        finally:
            task.cancel()  # without effect once it is done

    def _request(self, prompt: Prompt) -> tuple[dict[str, Any], Any, str]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            max_tokens=prompt.max_new,
            temperature=prompt.temperature,
            top_p=1.0 if prompt.top_p is None else prompt.top_p,
            seed=secrets.randbits(63) if prompt.seed is None else prompt.seed,
            stop=list(prompt.stops),
            include_stop_str_in_output=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        return {"prompt_token_ids": list(prompt.ids)}, params, self._next_name()

    def _next_name(self) -> str:
        return f"heldout-{next(self._numbers)}"

    async def _finish(self, outputs: Any) -> Any:
        last = None
        async for output in outputs:
            last = output
        if last is None:
            raise EndpointError("vLLM ended a request without an output")
        return last

    def _read(self, output: Any) -> Generation:
        [turn] = output.outputs
        if turn.finish_reason not in ("stop", "length"):
            raise EndpointError(f"vLLM ended the turn early ({turn.finish_reason})")
        self._check_version(turn)
        # As a whole: what vLLM decodes token by token may differ in spaces.
        text = self._engine.get_tokenizer().decode(list(turn.token_ids), skip_special_tokens=True)
        return Generation(tuple(turn.token_ids), turn.finish_reason, text)

    def _check_version(self, turn: Any) -> None:
        if self.version is None:
            return
        spans = getattr(turn, "weight_versions", None)
        versions = {span.version for span in spans or ()}
        if not versions:
            raise FatalEndpointError(
                "vLLM did not say which weights it answered with, so these need not be "
                f"{self.version}, which it was sent last"
            )
        if versions != {self.version}:
            raise FatalEndpointError(
                f"vLLM answered with the weights {', '.join(sorted(versions))}, not with "
                f"{self.version}, which it was sent last"
            )

    def _explain(self, problem: Exception) -> EndpointError:
        """Return the error of a request: of this one alone, or of all if the engine is gone."""
        if self._engine is None or self._engine.errored:
            self._problem = f"vLLM's engine for {self.path} has ended in the middle of its work"
            return FatalEndpointError(self._problem)
        if isinstance(problem, EndpointError):
            return problem
        cause = problem.__cause__ or problem
        return EndpointError(f"vLLM: {type(cause).__name__}: {printable_error(cause)}"[:2000])

    # --- Start and end ---

    def _serve(self) -> None:
        assert self._loop is not None
        # The children inherit it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._end()

    async def _start(self) -> None:
        # No other coroutine runs while the engine is made: it blocks the loop.
        if self._problem is not None:
            raise FatalEndpointError(self._problem)
        if self._engine is None:
            try:
                self._engine = self._make_engine()
            except EndpointError as problem:
                self._problem = printable_error(problem)
                raise
            except Exception as problem:
                reason = (printable_error(problem).strip() or type(problem).__name__).splitlines()
                self._problem = f"vLLM cannot load {self.path}: {reason[0]}{_MAIN_HINT}"
                raise FatalEndpointError(self._problem) from problem

    def _make_engine(self) -> Any:
        self.loaded()
        import_vllm()
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        quiet = {"disable_log_stats": True, "enable_log_requests": False}
        args = AsyncEngineArgs(
            model=self.path, **{**quiet, "use_tqdm_on_load": False, **self.settings}
        )
        self._others = {child.pid for child in multiprocessing.active_children()}
        try:
            with _own_environment():
                engine = AsyncLLM.from_engine_args(args)
            self._children = [
                child
                for child in multiprocessing.active_children()
                if child.pid not in self._others
            ]
        finally:
            self._others = None
        try:
            self.loaded()
        except BaseException:
            engine.shutdown()
            raise
        return engine

    def _end(self) -> None:
        engine, self._engine = self._engine, None
        loop = self._loop
        assert loop is not None
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        with suppress(Exception):
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        if engine is not None:
            engine.shutdown()
            for child in self._children:
                child.join(END_SECONDS)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _kill_starting(self) -> None:
        """End the processes of an engine that is being started, which may take minutes."""
        while (others := self._others) is not None:
            for child in multiprocessing.active_children():
                if child.pid not in others and child.name.startswith("EngineCore"):
                    child.kill()
            time.sleep(POLL_SECONDS)


_MAIN_HINT = (
    " (it has printed more above; a script that starts vLLM needs `if __name__ == '__main__':`)"
)


@contextmanager
def _own_environment() -> Iterator[None]:
    """Set variables for vLLM, and restore all: it sets LD_PRELOAD, LOCAL_WORLD_SIZE and more."""
    before = dict(os.environ)
    os.environ.update({**QUIET, **before})
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
