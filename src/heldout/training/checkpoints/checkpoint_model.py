"""How a checkpoint is loaded and asked: by the model's name, on a server, or on other machines.

A checkpoint goes in, as its trainer has written it. It is converted, merged or completed to a
folder that loads, and the samples are run on that; a report comes out. `following` decides when a
checkpoint is evaluated, and what its point says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from heldout._core.aio import CallerThread, ContainedExit, run_in_loop_thread
from heldout._core.config import EvalConfig, check_endpoint
from heldout._evals.engine import Executor, evaluate
from heldout._evals.rollout import EvalDefinition
from heldout.errors import EvalFailed, InvalidInput
from heldout.models import Endpoint, open_endpoint
from heldout.models.local import LocalEndpoint
from heldout.models.vllm import VLLMEndpoint
from heldout.store.report import EvalReport
from heldout.training.checkpoints import commands, formats
from heldout.training.checkpoints.converting import (
    check_base,
    empty_folder,
    explain_cut,
    make_loadable,
)
from heldout.training.checkpoints.finding import Checkpoint
from heldout.training.checkpoints.formats import UnreadableCheckpoint, Weights
from heldout.training.reasons import describe

PATH = "{path}"
"""Stands for the folder of a checkpoint in the name of a model, and in commands."""
SERVE_SECONDS = 1800.0
"""How long a server may take to load a checkpoint."""


class CheckpointModel:
    """How checkpoints are loaded and asked.

    Args:
        model: As for `follow_checkpoints`, and so are the others.
        serve: A command that serves a checkpoint.
        executor: Runs the samples elsewhere.
        base: The model that was trained.
        convert: A command that converts a checkpoint.

    Raises:
        InvalidInput: One of them is invalid.
    """

    def __init__(
        self,
        model: str | None,
        serve: str | None,
        executor: Executor | None,
        *,
        base: str | None,
        convert: str | None,
    ) -> None:
        if serve is not None and (model is not None or executor is not None):
            other = "model" if model is not None else "executor"
            raise InvalidInput(f"a server is started on this machine: serve goes without {other}")
        self.name = serve or model or f"hf:{PATH}"
        if PATH not in self.name:
            raise InvalidInput(
                f"the model of a checkpoint has {PATH} for its folder, as in hf:{PATH}; got "
                f"{self.name!r}, which would be the same at each step"
            )
        self._serve, self._convert = None, None
        if serve is not None:
            self._serve = commands.split_command(serve, "serve", PATH, "{port}")
        else:
            check_endpoint(self.name)
        if convert is not None:
            self._convert = commands.split_command(convert, "convert", PATH, "{out}")
        self._executor, self.base = executor, base

    def locate(self, checkpoint: Checkpoint) -> Weights | None:
        """Find the weights of a checkpoint; None where there are none yet."""
        if self._convert is not None:
            return Weights("transformers", checkpoint.path)
        with suppress(FileNotFoundError):  # it is being removed
            return formats.locate_weights(checkpoint.path)
        return None

    def explain_incomplete(self, weights: Weights) -> str | None:
        """Say what is missing of a checkpoint; None if it is whole."""
        if self._convert is not None:
            return None  # its files are the converter's
        reason = formats.explain_incomplete(weights)
        try:
            if reason is None and weights.format == "distributed":
                reason = explain_cut(weights.path)
        except UnreadableCheckpoint:
            return None  # which is said when it is read
        except Exception as problem:  # noqa: BLE001 - a pickle that is cut can raise anything
            return describe(problem)
        return reason

    def check_readable(self, checkpoint: Checkpoint, weights: Weights) -> None:
        """Raise UnreadableCheckpoint if the format cannot be read, or the base is another one."""
        if self._convert is None:
            formats.check_readable(checkpoint.name, weights, self.base)
            check_base(weights, self.base)

    @contextmanager
    def loadable(
        self, checkpoint: Checkpoint, weights: Weights, out: Path
    ) -> Iterator[tuple[Weights, Path]]:
        """Make a folder that the model is loaded from, for as long as it is needed.

        Yields:
            The weights, which a converter may have written anew, and the folder.
        """
        with empty_folder(out) as empty:
            if self._convert is not None:
                weights = self._run_converter(checkpoint, empty)
            loadable = empty / "loadable"
            loadable.mkdir()
            merge = not self.name.startswith("hf:")
            yield weights, make_loadable(weights, loadable, base=self.base, merge=merge)

    def _run_converter(self, checkpoint: Checkpoint, out: Path) -> Weights:
        assert self._convert is not None
        (out / "converted").mkdir()
        words = commands.fill_in(self._convert, path=checkpoint.path, out=out / "converted")
        commands.convert(words, out.with_suffix(".log"))
        weights = formats.locate_weights(out / "converted")
        reason = "no weights" if weights is None else formats.explain_incomplete(weights)
        if weights is None or reason is not None:
            raise EvalFailed(f"what {words[0]} has written for {checkpoint.name} has {reason}")
        formats.check_readable(checkpoint.name, weights, self.base)
        check_base(weights, self.base)
        return weights

    @contextmanager
    def served(self, folder: Path, log_path: Path) -> Iterator[str]:
        """Give the name of the model in a folder, served if it has to be."""
        if self._serve is None:
            yield self.name.replace(PATH, str(folder))
            return
        port = commands.free_port()
        words = commands.fill_in(self._serve, path=folder, port=port)
        with commands.serve(words, port, log_path, SERVE_SECONDS) as name:
            yield name

    def evaluate(
        self,
        definition: EvalDefinition,
        config: EvalConfig,
        name: str,
        about: dict[str, Any],
        is_unchanged: Callable[[], bool],
    ) -> EvalReport:
        """Run the samples on a model, and return the report.

        Args:
            definition: The eval.
            config: How to run it.
            name: The model, as `served` gives it.
            about: What the report says of the model: no path, which may be another after a restart.
            is_unchanged: Whether the files of the model are still what they were when they were
                hashed. It is asked once the model is loaded.
        """

        def read_version() -> str:
            return str(about["version"]) if is_unchanged() else "overwritten"

        async def main(caller_thread: CallerThread) -> EvalReport:
            if self._executor is not None:
                given = replace(config, endpoint=name)
                report = await evaluate(definition, given, executor=self._executor)
                is_unchanged()
                return report
            endpoint = open_endpoint(name, max_concurrent=config.max_concurrent)
            if loads_here := isinstance(endpoint, LocalEndpoint | VLLMEndpoint):
                endpoint.read_version = read_version  # the files are not hashed once more
            described = _DescribedEndpoint(endpoint, about)
            try:
                return await evaluate(definition, replace(config, endpoint=described))
            finally:
                await endpoint.close()
                if not loads_here:
                    is_unchanged()  # nobody knows when a server has read them

        try:
            report = run_in_loop_thread(main)
        except ContainedExit as wrapped:  # the user's code ends the process, as Ctrl-C does
            raise wrapped.__cause__ or wrapped from None
        assert report is not None  # None is for what was cancelled
        return report


class _DescribedEndpoint:
    """An endpoint that is described by its checkpoint."""

    def __init__(self, endpoint: Endpoint, about: dict[str, Any]) -> None:
        self._endpoint, self._about = endpoint, about

    def describe(self) -> dict[str, Any]:
        return self._about

    def __getattr__(self, name: str) -> Any:
        return getattr(self._endpoint, name)
