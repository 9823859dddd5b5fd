"""Evaluation between the steps of a training loop that you wrote yourself.

    evals = EvalEvery(10_000, make_env, policy_fn, episodes=100)
    for step in range(…):
        …                                  # train
        report = evals.maybe_run(step)     # None unless an evaluation is due
    evals.run_final(step)                  # the last weights, on or off cadence

This is `heldout.training.PeriodicEval` with episodes for samples: the same cadence, the same curve
in a run directory (`heldout curve`), the same verdicts. It has no side
effects on training: environments are the evaluation's own, random state and every module's
train/eval flag are restored (docs/semantics.md, clauses 12 to 14). An evaluation that fails is a
skip with its reason, on the curve, in `history` and in the log, and never a number.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heldout._live.isolation import held_by, modules_of, untouched_random_state
from heldout.errors import HeldoutError, InvalidInput, printable_error
from heldout.store.fingerprint import describe_callable
from heldout.vector.drivers import check_make_env
from heldout.vector.episodes import check_whole, episode_seed
from heldout.vector.evaluation import (
    PolicyFn,
    SuccessFn,
    SuccessWord,
    check_arguments,
    evaluate_env,
)
from heldout.vector.report import Reward, VectorReport, episode_sample

if TYPE_CHECKING:
    from heldout.store.report import EvalReport
    from heldout.training.curve.points import CurvePoint
    from heldout.training.curve.publishing import Heartbeat, Monitor
    from heldout.training.periodic_eval import PeriodicEval
    from heldout.training.runner import EpisodeRunner

log = logging.getLogger("heldout")

LABEL = "env_eval"


@dataclass(frozen=True, slots=True)
class EvalPoint:
    """An evaluation that was due: its report, or why there is none."""

    step: int
    report: VectorReport | None
    skipped: str | None
    seconds: float
    reused: bool = False
    """These weights were measured at this step by an earlier attempt, and not again."""


class EvalEvery:
    """Evaluates whenever `every_steps` more steps have been trained.

    Args:
        every_steps: In whatever unit you count; 0 evaluates only where `run` or `run_final` is
            called. A counter that jumps (by the number of training environments, say) is due when
            it passes a multiple.
        make_env: Makes a new environment at every call. One that existed before is refused, since
            training's would be reset in the middle of an episode, and closed. To see that in time,
            two are made, and closed, at `begin` or the first other call.
        policy_fn: As in `evaluate_env`. Torch modules that it closes over or is bound to are put
            into eval mode, without gradients, and then each back to the flag it had.
        episodes: How many episodes an evaluation plays.
        num_envs: How many plain environments to run side by side.
        seed: Of every evaluation, so that all of them play the same episodes.
        max_steps: Truncates longer episodes.
        success: As in `evaluate_env`.
        model: A torch module, or several, that `policy_fn` reaches in another way; or a function
            that returns all modules and tensors that the policy consists of. A point of the curve
            has their hash.
        at_start: Whether the first step is due too; where a curve is continued, it has that.
        reward: What the curve is of, "success" or "return"; success where `success` is given, the
            return where it is not. An evaluation in which nothing says what success is has no
            point on a curve of successes.
        label: The evaluation's name in heartbeats, logs and the curve.
        run_dir: Where the curve is; `outputs/evals/<label>` unless given, or `<label>-2`, `-3` …
            where that has one.
        resume: Whether the curve in `run_dir` is continued.
        monitor: As in `PeriodicEval`.
        heartbeat_fn: As in `PeriodicEval`.
        identity: What else makes the numbers, of the policy say ("greedy"): a curve is continued
            only where it has not changed.

    Raises:
        InvalidInput: An argument cannot be used.
        RunExists: As in `PeriodicEval`.
        ResumeMismatch: The curve to be continued is of another evaluation.
    """

    def __init__(
        self,
        every_steps: int,
        make_env: Callable[[], Any],
        policy_fn: PolicyFn,
        episodes: int,
        *,
        num_envs: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        success: SuccessFn | SuccessWord | None = None,
        model: Any = None,
        at_start: bool = False,
        reward: Reward | None = None,
        label: str = LABEL,
        run_dir: str | Path | None = None,
        resume: bool | None = None,
        monitor: Monitor | None = None,
        heartbeat_fn: Heartbeat | None = None,
        identity: Mapping[str, Any] | None = None,
    ) -> None:
        from heldout.training.periodic_eval import PeriodicEval
        from heldout.training.runner import EpisodeRunner
        from heldout.training.settings import EnvironmentSettings

        check_whole("every_steps", every_steps, least=0, note=" (0: only where run() is called)")
        check_arguments(make_env, episodes, num_envs, seed, max_steps, success)
        if reward not in (None, "success", "return"):
            raise InvalidInput(f"reward must be 'success' or 'return', got {reward!r}")
        outside = EnvironmentSettings.from_environment()
        if outside.num:
            episodes = min(episodes, outside.num)
        self._is_off = 0 in (outside.num, outside.every_steps)
        self.history: list[EvalPoint] = []
        """Every evaluation that was due, skipped ones too."""
        self._reward: Reward = reward or ("return" if success is None else "success")
        self._evaluate: Callable[[], VectorReport] = partial(
            evaluate_env,
            make_env,
            policy_fn,
            episodes,
            num_envs=num_envs,
            seed=seed,
            max_steps=max_steps,
            success=success,
        )
        self._report: VectorReport | None = None
        """Of the evaluation that was made last, until it is in `history`."""
        self._at_start = self._is_start = at_start
        self._has_begun, self._resumes = False, bool(resume)
        self._make_env, self._is_checked = make_env, False
        functions = {
            "make_env": describe_callable(make_env),
            "success": success if isinstance(success, str) else describe_callable(success),
            "settings": {"reward": self._reward, "max_steps": max_steps},
            **(identity or {}),
        }
        runner = EpisodeRunner(self._play, functions, has_passes=self._reward == "success")
        self._named_dir = run_dir
        self._make_evals: Callable[..., PeriodicEval] = partial(
            PeriodicEval,
            [episode_sample(i, episode_seed(int(seed), i)) for i in range(episodes)],
            _EpisodeRunnerBuilder(runner, is_bounded=self._reward == "success"),
            every_steps=int(every_steps),
            heartbeat_fn=heartbeat_fn,
            model_getter=_model_getter(policy_fn, model),
            label=label,
            seed=int(seed),
            max_seconds=None,
            monitor=monitor,
        )
        self._evals = self._make_evals(run_dir=run_dir, resume=resume)
        self.every_steps: int = self._evals.every_steps

    def begin(self, step: int, *, resume: bool = False) -> None:
        """Say where training begins, if that is not at 0: what lies before is not due.

        Called again after evaluations, it begins another training run, with a curve of its own
        unless it resumes.

        Args:
            step: The first step of this training run.
            resume: Whether it goes on from a checkpoint, so that the curve is continued.

        Raises:
            InvalidInput: `make_env` returned an environment that existed before.
            RunExists: `run_dir` was given and has a curve that is not to be continued.
            ResumeMismatch: The curve to be continued is of another evaluation.
        """
        self._is_checked = False
        self._check_make_env()
        if self._evals.history:
            run_dir = self._evals.run_dir if resume else self._named_dir
            self._evals = self._make_evals(run_dir=run_dir, resume=True if resume else None)
        self._evals.begin(step, resume=resume)
        self._has_begun, self._is_start = True, self._at_start and not self.points

    def maybe_run(self, step: int) -> VectorReport | None:
        """Evaluate if it is due.

        Args:
            step: How far training is.

        Returns:
            The report; None where no evaluation was due, or where it failed.

        Raises:
            InvalidInput: In the first call: `make_env` returned an environment that existed before.
        """
        self._check_make_env()
        if not self._has_begun:
            self._has_begun = True
            # A loop that was resumed goes on where it was; any other begins at 0.
            self._evals.begin(None if self._resumes else 0)
            self._is_start = self._is_start and not self.points
        is_start, self._is_start = self._is_start and self.every_steps > 0, False
        point = self._evals.maybe_run(step)
        if point is None and is_start:
            point = self._evals.run_eval(step)
        return self._record(point)

    def run(self, step: int) -> VectorReport | None:
        """Evaluate now.

        Args:
            step: How far training is.

        Returns:
            The report; None where the evaluation failed, which is a skip in `history`.
        """
        self._check_make_env()
        return None if self._is_off else self._record(self._evals.run_eval(step))

    def run_final(self, step: int) -> VectorReport | None:
        """Evaluate the last weights, unless that was done at this step, and end the curve.

        Args:
            step: The last step.

        Returns:
            The report; None where the evaluation failed.
        """
        self._check_make_env()
        if self._is_off:
            return None
        before = self._evals.history[-1:]
        if self.every_steps:
            point = self._evals.run_final(step)
        else:
            point = self._evals.run_eval(step)
            self.end()
        if before and point is before[0]:
            return self.history[-1].report
        return self._record(point)

    def end(self) -> None:
        """Say that training has ended, without another evaluation."""
        if self.points:
            self._evals.curve.mark_complete()

    @property
    def run_dir(self) -> Path:
        """Where the curve is, or will be."""
        return self._evals.run_dir

    @property
    def points(self) -> list[CurvePoint]:
        """The curve as it stands, by step, earlier attempts included."""
        return self._evals.points

    @property
    def stop_requested(self) -> str | None:
        """Why training should stop, if the monitor or `heldout curve stop` said so."""
        is_running = self.every_steps > 0 or bool(self._evals.history)
        return self._evals.stop_requested if is_running else None

    def _check_make_env(self) -> None:
        """Refuse a training environment before anything is trained, not at the first eval."""
        if self._is_checked or self._is_off:
            return
        self._is_checked = True
        try:
            with untouched_random_state():
                check_make_env(self._make_env)
        except InvalidInput:
            raise
        except Exception as problem:  # noqa: BLE001 - the user's code; the eval will be a skip
            log.warning("heldout: make_env() could not be checked: %s", printable_error(problem))

    def _play(self) -> EvalReport:
        self._report = self._evaluate()
        return self._report.as_eval(self._reward)

    def _record(self, point: CurvePoint | None) -> VectorReport | None:
        """Add the outcome of an evaluation to `history`."""
        report, self._report = self._report, None
        if point is None:
            return None
        reused = point.has_result and report is None
        if not point.has_result:
            report = None
        elif reused and point.run is not None:
            report = _load_report(self.run_dir / point.run)
        self.history.append(EvalPoint(point.step, report, point.skipped, point.seconds, reused))
        return report


@dataclass(frozen=True, slots=True)
class _EpisodeRunnerBuilder:
    """A runner builder for `PeriodicEval`: the policy is played as it is."""

    prototype: EpisodeRunner
    is_bounded: bool
    """Whether rewards are successes, between 0 and 1, and not returns."""

    def __call__(self, model: Any) -> EpisodeRunner:
        return self.prototype


def _load_report(path: Path) -> VectorReport | None:
    try:
        return VectorReport.load(path)
    except HeldoutError:  # deleted since
        return None


# --- What the policy consists of ----------------------------------------------------------------


def _model_getter(policy_fn: PolicyFn, model: Any) -> Callable[[], Any]:
    """Return a function that gives what the hash of the weights is of.

    Where there is nothing with weights that gives the policy itself, which has no hash: weights
    that are not known are never the same.
    """
    if callable(model) and not callable(getattr(model, "modules", None)):
        return model  # type: ignore[no-any-return]
    modules = modules_of(model)
    if model is not None and not modules:
        raise InvalidInput(
            f"model must be a torch module, or a list or dict of them, got {model!r:.120}"
        )
    return lambda: _outermost([*held_by(policy_fn)[0], *modules]) or policy_fn


def _outermost(modules: list[Any]) -> list[Any]:
    """Leave out modules that are part of others."""
    inner = {id(part) for module in modules for part in module.modules() if part is not module}
    return list({id(module): module for module in modules if id(module) not in inner}.values())
