"""A heldout eval of the weights that a sampling client is bound to: the report, and its point.

Of training loops, schedules and curves nothing is known here.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from heldout.config import EvalConfig, Sampling
from heldout.engine import evaluate
from heldout.errors import InvalidInput
from heldout.integrations.tinker.endpoint import TinkerEndpoint, stop_sequences
from heldout.integrations.tinker.steps import Step
from heldout.items import EnvironmentFactory, PrepareMessages, ScoreFn
from heldout.store.report import EvalReport
from heldout.store.rundir import RunDir
from heldout.training.curve import CurvePoint
from heldout.training.pending import PendingEval
from heldout.training.results import point_of
from heldout.training.samples import checked
from heldout.types import Sample


class Measurement:
    """What is measured, and how; `settings` are `EvalConfig`'s. Whatever is wrong with them shows
    here, and not at the first eval of a long training."""

    def __init__(
        self,
        name: str,
        samples: Iterable[Sample],
        hooks: tuple[ScoreFn, PrepareMessages | None, EnvironmentFactory | None],
        renderer: Any,
        *,
        max_tokens: int,
        sampling: Sampling | None,
        context_window: int | None,
        **settings: Any,
    ) -> None:
        if not callable(hooks[0]):
            raise InvalidInput(
                f"score_fn is a function (trajectory, sample) -> Score, got {hooks[0]!r:.100}"
            )
        for method in ("build_generation_prompt", "parse_response", "get_stop_sequences"):
            if not callable(getattr(renderer, method, None)):
                raise InvalidInput(
                    f"renderer is one of tinker_cookbook.renderers, got {renderer!r:.100}"
                )
        if context_window is not None and context_window < 1:
            raise InvalidInput(f"context_window is a number of tokens, got {context_window!r}")
        self._name, self._samples, self._hooks = name, tuple(checked(samples)), hooks
        self._renderer, self._context_window = renderer, context_window
        self._max_tokens = max_tokens
        self._sampling = replace(sampling or Sampling(), max_tokens=max_tokens)
        if self._sampling.temperature > 0 and self._sampling.seed is None:
            self._sampling = replace(self._sampling, seed=0)  # the same weights, the same summary
        stop_sequences(renderer, self._sampling)
        self._config = partial(EvalConfig, sampling=self._sampling, progress=False, **settings)
        self._config()

    async def point(
        self,
        client: Any,
        step: Step,
        directory: Path | None,
        *,
        final: bool,
        saved_at: str | None,
    ) -> CurvePoint:
        """Its session is filled in by whoever writes it. `directory` is that of the curve."""
        began = time.monotonic()
        session = getattr(client, "_sampling_session_id", None)
        about = {
            "step": step.number,
            "step_from": step.source,
            "sampler_path": saved_at,
            "sampling_session": session if isinstance(session, str) else None,
        }
        about = {key: value for key, value in about.items() if value is not None}
        report = await self.report(client, directory, about, prefix=f"{step.number:08d}")
        pending = PendingEval(self._name, step.number, "")
        # In a thread: a large report would hold up the loop, and the training in it.
        point = await anyio.to_thread.run_sync(
            point_of, report, pending, time.monotonic() - began, directory
        )
        decoding = {
            "way": "tinker",
            "temperature": self._sampling.temperature,
            "top_p": self._sampling.top_p,
            "max_new": self._max_tokens,
            **about,
        }
        return msgspec.structs.replace(point, decoding=decoding, final=final)

    async def report(
        self,
        client: Any,
        directory: Path | None,
        about: dict[str, Any] | None = None,
        *,
        prefix: str = "unplaced",
    ) -> EvalReport:
        """Its conversations are in `<directory>/steps`, if there is a directory."""
        endpoint = TinkerEndpoint(
            client,
            self._renderer,
            max_tokens=self._max_tokens,
            context_window=self._context_window,
            about=about,
        )

        async def run(home: Path) -> EvalReport:
            config = self._config(
                endpoint=endpoint,
                experiment_name=_unused(home, f"{prefix}-{self._name}"),
                output_dir=str(home),
            )
            return await evaluate(self._samples, config, *self._hooks)

        if directory is not None:
            return await run(directory / "steps")
        with tempfile.TemporaryDirectory(prefix="heldout-") as place:
            report = await run(Path(place))
            return EvalReport(list(report.results), report.summary, report.config)


def _unused(home: Path, name: str) -> str:
    found, number = name, 2
    while RunDir(home / found).exists():
        found, number = f"{name}-{number}", number + 1
    return found
