"""`heldout curve follow DIR`: the curve of a folder of checkpoints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from heldout._core.format import count, printable
from heldout.cli._cluster import ClusterOptions, executor_options
from heldout.cli._options import SettingOption, count_option
from heldout.cli._tables import decide, print_json
from heldout.cli.run import RunRequest, configure, load_eval_file, stdout_for_json
from heldout.errors import EvalFailed, InvalidInput
from heldout.reporting.curves import (
    conclude_point,
    describe_status,
    format_point,
    point_as_dict,
    read_curve,
)
from heldout.training.curve.points import CurvePoint

if TYPE_CHECKING:
    from heldout.training.checkpoints.finding import Checkpoint


@click.command("follow")
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--eval",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The eval, as for `heldout run`: a Python file, a module, or a task.",
)
@click.option(
    "--model",
    metavar="MODEL",
    help="The model of a checkpoint: hf:{path}, vllm:{path}.  [default: hf:{path}]",
)
@click.option(
    "--serve",
    metavar="CMD",
    help="In place of --model, a command that serves a checkpoint as an OpenAI-compatible server: "
    "'vllm serve {path} --port {port}'.",
)
@click.option(
    "--pattern",
    metavar="PATTERN",
    help="Names of checkpoints below DIR, with {step}: 'epoch_*/step_{step}'.  [default: "
    "checkpoint-N, global_step_N, step_N, step-N, iter_N]",
)
@click.option(
    "--base",
    metavar="MODEL",
    help="The model that was trained, for checkpoints without a config or a tokenizer, and "
    "adapters.",
)
@click.option(
    "--convert",
    metavar="CMD",
    help="A command that converts a checkpoint, {path}, to a folder that transformers loads, "
    "{out}.",
)
@click.option("--name", metavar="NAME", help="Name of the curve.  [default: of FILE and of DIR]")
@click.option(
    "--output-dir",
    default="outputs/evals",
    show_default=True,
    metavar="DIR",
    help="Where the curve's directory is made.",
)
@count_option("-n", "--limit", "max_samples", cls=SettingOption, help="Only N of the samples.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As for `heldout run`.")
@click.option(
    "-T", "parameters", multiple=True, metavar="KEY=VALUE", help="A parameter of load_dataset."
)
@click.option("--once", is_flag=True, help="Evaluate what is there now, and end.")
@click.option(
    "--poll",
    type=click.FloatRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="Between looks; a checkpoint is taken once nothing has changed in it for so long.",
)
@click.option(
    "--done-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Says that training has ended: what is there is still evaluated.  [default: DIR/done]",
)
@click.option(
    "--stop-after",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="End when no new checkpoint has come for so long.",
)
@click.option(
    "--stop-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Written with the reason when training should stop: after --stop-on-…, or "
    "`heldout curve stop`.",
)
@count_option("--stop-on-regression", help="Training should stop after N such verdicts in a row.")
@count_option("--stop-on-plateau", help="Training should stop after N such verdicts in a row.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON per point.")
@executor_options
def command(
    folder: Path,
    file: Path,
    name: str | None,
    output_dir: str,
    max_samples: int | None,
    settings: tuple[str, ...],
    parameters: tuple[str, ...],
    poll: float,
    stop_on_regression: int | None,
    stop_on_plateau: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Evaluate each checkpoint in DIR once, as they come, into an ordinary curve.

    For trainers that know nothing of heldout (docs/trainers.md). Ctrl-C ends it; the same command
    continues: nothing is evaluated twice. DIR may not exist yet.
    """
    from heldout.training.checkpoints import follow_checkpoints
    from heldout.training.curve.verdicts import CurveMonitor

    cluster = ClusterOptions(
        **{n: options.pop(n) for n in ("on", "workers", "gpus_per_worker", "cpus_per_worker")},
        resources=options.pop("resources"),
    )
    cluster.check()
    if options["once"] and not folder.is_dir():
        raise InvalidInput(f"there is no folder {folder}, and --once does not wait for it")
    with stdout_for_json(as_json):
        eval_file = load_eval_file(file)
        request = RunRequest.of(None, settings, parameters, (), {"max_samples": max_samples})
        definition = eval_file.define(request.dataset)
    config = configure(eval_file.config, request.settings)
    label = re.sub(r"[^\w-]|[^\x00-\x7f]", "-", config.experiment_name or "eval")
    run_dir = Path(output_dir) / (name or f"{label}-{folder.resolve().name}")
    _announce(folder, run_dir, options["pattern"])

    skips: list[str | None] = []  # by point; None for a result

    def print_point(point: CurvePoint) -> None:
        skips.append(point.skipped)
        if as_json:
            print_json(decide(*conclude_point(point), point_as_dict(point)), "curve follow")
        else:
            click.echo(format_point(point, labelled=False))

    try:
        follow_checkpoints(
            folder,
            definition,
            config=config,
            run_dir=run_dir,
            label=label,
            poll_seconds=poll,
            monitor=CurveMonitor(
                stop_on_regression=stop_on_regression, stop_on_plateau=stop_on_plateau
            ),
            on_point=print_point,
            executor=cluster.executor,
            **options,
        )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"The curve so far is in {run_dir}; the same command continues it."
        ) from None
    if not as_json:
        _print_end(run_dir)
    if skips and None not in skips:
        none = f"none of {count(len(skips), 'new checkpoint')} could be evaluated"
        raise EvalFailed(f"{none}: {skips[-1]}")
    left = _find(folder, options["pattern"])
    if left and not any(point.has_result for point in read_curve(run_dir).points):
        raise EvalFailed(f"none of {count(len(left), 'checkpoint')} could be evaluated; see above")


def _find(folder: Path, pattern: str | None) -> list[Checkpoint]:
    from heldout.training.checkpoints.finding import find_checkpoints, patterns_of

    patterns = patterns_of(pattern)
    return find_checkpoints(folder, patterns) if folder.is_dir() else []


def _announce(folder: Path, run_dir: Path, pattern: str | None) -> None:
    from heldout.training.checkpoints.finding import patterns_of

    patterns, found = patterns_of(pattern), _find(folder, pattern)
    here = f"{count(len(found), 'checkpoint')} there now" if found else "no checkpoint there yet"
    if not found and folder.is_dir() and (names := sorted(p.name for p in folder.iterdir())[:5]):
        here += f" by the names {', '.join(patterns)} (there is {', '.join(names)}; --pattern)"
    click.echo(printable(f"Following {folder}, {here}. The curve is in {run_dir}."), err=True)


def _print_end(run_dir: Path) -> None:
    from heldout.cli._tables import print_report
    from heldout.reporting.blocks import Report

    curve = read_curve(run_dir)
    if not curve.points:
        click.echo("No checkpoint was evaluated.")
    else:
        print_report(Report([describe_status(curve)]))
