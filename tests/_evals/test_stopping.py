"""Runs that stop when a claim is settled: looks at prefixes, and what a reader is told after."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from heldout import EvalReport, Message, Sample, Trajectory, rescore
from heldout._core.prices import Price
from heldout._evals.stopping import order_for_looks
from heldout.analysis import compare, gate, pass_at_k, summarize
from heldout.datasets import ordered_by_id
from heldout.errors import (
    EvalFailed,
    InvalidInput,
    NotComparable,
    ResumeMismatch,
    RunDirectoryError,
    SystemicFailure,
)
from heldout.reporting.blocks import Line
from heldout.reporting.summaries import build_report
from heldout.store.ahead import ahead_path
from heldout.store.sql import query
from heldout.types import Completion, Usage
from tests.conftest import RunEval, both_loops, make_samples
from tests.test_semantics import journal_items

Answer = Callable[[list[Message]], Awaitable[str]]
SAMPLES = make_samples(400)


def is_right(number: str, rate: float, tag: str = "") -> bool:
    """Whether a model of this accuracy knows an answer: by its hash, in every process the same."""
    digest = hashlib.blake2b(f"{tag}:{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < rate


def model(rate: float, tag: str = "", *, ticks: int = 0, log: list[str] | None = None) -> Answer:
    """A model of a known accuracy whose wrong answers take twice as long, in turns of the loop."""

    async def answer(messages: list[Message]) -> str:
        number = messages[-1].text.split()[-1].rstrip("?")
        right = is_right(number, rate, tag)
        for _ in range(ticks if right else 2 * ticks):
            await anyio.sleep(0)
        if log is not None:
            log.append(number)
        return number if right else "no"

    return answer


def grade(trajectory: Trajectory, sample: Sample) -> float:
    return float(trajectory.answer == sample.ground_truth)


def summary_of(report: EvalReport) -> bytes:
    assert report.path is not None
    return (report.path / "summary.json").read_bytes()


# --- Looks ----------------------------------------------------------------------------------------


@both_loops
def test_the_summary_is_the_same_whatever_the_concurrency(run_eval: RunEval) -> None:
    reports = [
        run_eval(
            SAMPLES,
            grade,
            endpoint=model(0.92, ticks=5),
            until="mean>0.8",
            max_concurrent=concurrent,
            experiment_name=f"at-{concurrent}",
        )
        for concurrent in (1, 8, 64)
    ]
    first = reports[0].settled
    assert first is not None
    assert first.decision == "true"
    assert first.is_early
    assert len({summary_of(report) for report in reports}) == 1
    for report in reports:
        assert report.settled is not None
        assert replace_spent(report) == replace_spent(reports[0])
        assert first.n_decided <= report.settled.n_spent <= first.n_decided + 64
        assert [r.sample_id for r in report.results] == [r.sample_id for r in reports[0].results]
    assert reports[0].settled.n_spent == first.n_decided, "one at a time, nothing is in flight"


def replace_spent(report: EvalReport) -> dict[str, Any]:
    settled = report.settled
    assert settled is not None
    return {
        name: getattr(settled, name)
        for name in settled.__struct_fields__
        if name != "n_spent"  # what was in flight at the stop depends on timing
    }


def test_quick_answers_do_not_decide_first(run_eval: RunEval) -> None:
    """Of a model that is right half the time, and wrong slowly."""
    finished_first, decided = 0.0, 0.0
    for draw in range(8):
        log: list[str] = []
        report = run_eval(
            SAMPLES,
            grade,
            endpoint=model(0.5, f"{draw}", ticks=20, log=log),
            until="±0.1",
            max_concurrent=64,
            experiment_name=f"run-{draw}",
        )
        n = report.summary["n"]
        assert n == 100
        in_order = ordered_by_id(SAMPLES, 0)[:n]
        of_prefix = [is_right(s.ground_truth, 0.5, f"{draw}") for s in in_order]
        assert report.summary["mean"] == sum(of_prefix) / n
        assert {r.sample_id for r in report.results} == {s.id for s in in_order}
        finished_first += sum(is_right(number, 0.5, f"{draw}") for number in log[:50]) / 50 / 8
        decided += report.summary["mean"] / 8
    assert finished_first > 0.56, "the simulation must have the bias that is to be avoided"
    assert abs(decided - 0.5) < 0.04


@both_loops
def test_no_more_than_max_concurrent_items_start_beyond_the_next_look(run_eval: RunEval) -> None:
    first = ordered_by_id(SAMPLES, 0)[0]
    started: set[str] = set()

    async def answer(messages: list[Message]) -> str:
        number = messages[-1].text.split()[-1].rstrip("?")
        started.add(number)
        if number == first.ground_truth:  # until nothing else starts any more
            still = 0
            while still < 50:
                before = len(started)
                await anyio.sleep(0)
                still = still + 1 if len(started) == before else 0
            assert len(started) == 20 + 8
        return number

    report = run_eval(SAMPLES, grade, endpoint=answer, until="mean>0.8", max_concurrent=8)
    assert report.settled is not None
    assert report.settled.n_decided == 40
    assert report.settled.n_spent <= 40 + 8


def test_a_sample_with_all_its_repeats_is_one_step(run_eval: RunEval) -> None:
    report = run_eval(
        make_samples(100), grade, endpoint=model(1.0), until="mean>0.5", repeats=3, max_concurrent=5
    )
    assert report.settled is not None
    assert report.settled.n_decided % 3 == 0
    ids = [result.sample_id for result in report.results]
    assert all(ids.count(id) == 3 for id in ids)
    assert report.settled.n_asked == 300


def test_copies_of_a_sample_run_side_by_side_and_are_one_step(run_eval: RunEval) -> None:
    copies = [replace(sample, id=f"{sample.id}-copy") for sample in make_samples(60)]
    samples = [*make_samples(60), *copies]
    ordered = order_for_looks(samples, whole=False)
    assert sorted(s.id for s in ordered) == sorted(s.id for s in samples)
    pairs = [{ordered[i].ground_truth, ordered[i + 1].ground_truth} for i in range(0, 120, 2)]
    assert all(len(pair) == 1 for pair in pairs)
    report = run_eval(samples, grade, endpoint=model(0.9), until="mean>0.5", max_concurrent=7)
    assert report.settled is not None
    assert report.settled.n_decided % 2 == 0
    assert report.settled.looks_planned == 20


@pytest.fixture
def chapters() -> list[Sample]:
    """400 samples in 100 chapters of 2 to 6."""
    sizes = [2, 3, 4, 5, 6] * 20
    numbers = [chapter for chapter, size in enumerate(sizes) for _ in range(size)]
    return [
        replace(sample, metadata={"chapter": chapter, "book": chapter % 8})
        for sample, chapter in zip(SAMPLES, numbers, strict=True)
    ]


def test_clusters_by_a_key_of_ones_own_are_one_step(
    chapters: list[Sample], run_eval: RunEval
) -> None:
    settings = {"endpoint": model(0.92, ticks=3), "max_concurrent": 8}
    report = run_eval(chapters, grade, **settings, until="mean>0.7", cluster="chapter")
    settled = report.settled
    assert settled is not None
    assert (settled.decision, settled.is_early, settled.n_asked) == ("true", True, 400)
    assert settled.rule == "Student's t on clusters by chapter, linear spending"
    seen = [result.sample.metadata["chapter"] for result in report.results]
    assert seen == sorted(seen, key=seen.index), "the samples of a chapter side by side"
    whole = {sample.metadata["chapter"]: 0 for sample in chapters}
    for sample in chapters:
        whole[sample.metadata["chapter"]] += 1
    assert all(seen.count(chapter) == whole[chapter] for chapter in seen)
    assert len({*seen}) >= 10
    assert report.config["cluster"] == "chapter"
    with pytest.raises(ResumeMismatch, match="cluster was 'chapter'"):
        run_eval(chapters, grade, **settings, until="mean>0.7", resume=True)
    finished = run_eval(chapters, grade, **settings, until="none", resume=True)
    plain = run_eval(chapters, grade, **settings, experiment_name="plain")
    assert summary_of(finished) == summary_of(plain)


def test_clusters_that_cannot_settle_a_claim_are_refused_before_anything_runs(
    chapters: list[Sample], run_eval: RunEval, tmp_path: Path
) -> None:
    lacks = [*chapters[:-2], *(replace(sample, metadata={}) for sample in chapters[-2:])]
    for samples, settings, match in [
        (chapters, {"cluster": "book"}, "8 clusters by book cannot settle.*takes 10 or more"),
        (
            chapters,
            {"cluster": "page"},
            "400 of 400 samples do not .* Keys that samples have: book, chapter",
        ),
        (lacks, {"cluster": "chapter"}, "2 of 400 samples do not have.*: s398, s399|s399, s398"),
        (chapters, {"cluster": "chapter", "this_set": True}, "of one size.* 2 to 6 samples"),
        (iter(chapters), {"cluster": "chapter"}, "cluster runs all samples of a cluster as one"),
    ]:
        with pytest.raises(InvalidInput, match=match):
            run_eval(samples, grade, endpoint=model(1.0), until="mean>0.5", **settings)
        assert not (tmp_path / "run").exists()
    with pytest.raises(InvalidInput, match="cluster is of runs that stop"):
        run_eval(chapters, grade, cluster="chapter")


@pytest.mark.parametrize("until", ["mean>0.8", "mean<0.2"])
def test_an_errored_item_counts_both_ways_before_a_look_decides(
    until: str, run_eval: RunEval
) -> None:
    """A policy that errors where it would fail must not stop early for the rest; nor a bad one."""
    settled = []
    for broken in (0, 3):

        async def answer(messages: list[Message], broken: int = broken) -> str:
            number = messages[-1].text.split()[-1].rstrip("?")
            if number in {s.ground_truth for s in ordered_by_id(SAMPLES, 0)[:broken]}:
                raise ValueError("broken")
            return number if until == "mean>0.8" else "no"

        report = run_eval(
            SAMPLES, grade, endpoint=answer, until=until, experiment_name=f"run-{broken}"
        )
        assert report.settled is not None
        settled.append(report.settled)
    assert settled[0].n_decided == 40
    assert settled[1].n_decided > 40
    assert settled[1].decision == "true"


def test_a_look_at_too_many_errors_decides_nothing(run_eval: RunEval) -> None:
    async def answer(messages: list[Message]) -> str:
        raise ValueError("broken")

    with pytest.raises(SystemicFailure):
        run_eval(make_samples(60), grade, endpoint=answer, until="mean>0.8", max_error_rate=0.1)


def test_too_few_differences_are_named_with_the_number_that_it_takes(
    run_eval: RunEval, tmp_path: Path
) -> None:
    wrong = {"3", "7", "40"}

    async def answer(messages: list[Message]) -> str:
        number = messages[-1].text.split()[-1].rstrip("?")
        return "no" if number in wrong else number

    run_eval(make_samples(60), grade, endpoint=model(1.0), experiment_name="old")
    report = run_eval(
        make_samples(60), grade, endpoint=answer, until=f"better than {tmp_path / 'old'}"
    )
    assert report.settled is not None
    assert report.settled.decision == "inconclusive"
    assert " Only 3 of them differ; it takes 6 or more." in report.settled.sentence


def test_a_gate_on_a_stop_without_a_median_shows_the_difference(
    run_eval: RunEval, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    run_eval(SAMPLES, grade, endpoint=model(0.7), experiment_name="old")
    claim = f"not worse than {old} by 0.2"
    report = run_eval(SAMPLES, grade, endpoint=model(0.72), until=claim, this_set=True)
    settled = report.settled
    assert settled is not None
    assert (settled.decision, settled.is_early, settled.estimate) == ("true", True, None)
    [check] = gate(report, baseline=old, no_worse_than=0.2).checks
    assert check.estimate == settled.difference


def test_the_claims_come_out_as_they_should(run_eval: RunEval, tmp_path: Path) -> None:
    run_eval(SAMPLES, grade, endpoint=model(0.7, "old"), experiment_name="old")
    old = tmp_path / "old"
    for until, rate, decision in [
        ("mean>0.8", 0.6, "false"),
        ("mean<0.8", 0.6, "true"),
        ("mean>0.8", 0.8, "inconclusive"),
        (f"better than {old}", 0.97, "true"),
        (f"better than {old}", 0.3, "false"),
        (f"better than {old}", 0.7, "inconclusive"),
        (f"not worse than {old} by 0.1", 0.75, "true"),
        (f"not worse than {old} by 0.1", 0.3, "false"),
        ("±0.1", 0.7, "true"),
    ]:
        report = run_eval(
            SAMPLES,
            grade,
            endpoint=model(rate, "new"),
            until=until,
            experiment_name=f"run-{abs(hash((until, rate)))}",
        )
        settled = report.settled
        assert settled is not None
        assert settled.decision == decision, (until, rate, settled)
        assert settled.exit_code == {"true": 0, "false": 1, "inconclusive": 3}[decision]
        assert settled.is_early == (decision != "inconclusive")
        if settled.is_early:
            assert report.summary["ci_low"] is None, "an ordinary interval does not hold"
            assert report.summary["stopped"] is True
            assert report.summary["n_asked"] == 400
        assert settled.interval is not None
        low, high = settled.interval
        assert settled.estimate is not None
        assert low <= settled.estimate <= high


def test_keep_power_and_level_change_when_a_run_stops(run_eval: RunEval) -> None:
    stops = {
        name: run_eval(
            SAMPLES,
            grade,
            endpoint=model(0.88),
            until="mean>0.8",
            experiment_name=name,
            **settings,
        ).settled
        for name, settings in {
            "linear": {},
            "keep": {"keep_power": True},
            "sharp": {"level": 0.2},
        }.items()
    }
    assert all(stop is not None and stop.decision == "true" for stop in stops.values())
    n = {name: stop.n_decided for name, stop in stops.items() if stop is not None}
    assert n["sharp"] <= n["linear"] <= n["keep"]


# --- Streams --------------------------------------------------------------------------------------


def stream(most: int = 10_000) -> Iterable[Sample]:
    """Samples whose number nobody knows, in an order of their own."""
    for n in range(most):
        yield Sample(f"s{n}", {"question": f"What is {n}?"}, str(n))


@pytest.mark.parametrize("until", ["mean>0.6", "mean<0.9", "±0.1"])
def test_a_stream_is_looked_at_until_the_claim_is_settled(until: str, run_eval: RunEval) -> None:
    reports = [
        run_eval(
            stream(),
            grade,
            endpoint=model(0.75, ticks=5),
            until=until,
            max_concurrent=concurrent,
            experiment_name=f"at-{concurrent}",
        )
        for concurrent in (1, 64)
    ]
    settled = reports[0].settled
    assert settled is not None
    assert (settled.decision, settled.n_asked, settled.looks_planned) == ("true", None, None)
    assert settled.is_early
    assert f"after {settled.n_decided} of a stream, at look {settled.looks_used}." in (
        settled.sentence
    )
    assert summary_of(reports[0]) == summary_of(reports[1])
    assert replace_spent(reports[0]) == replace_spent(reports[1])
    first = [f"s{n}" for n in range(settled.n_decided)]
    assert [result.sample_id for result in reports[0].results] == first, "its own order"
    summary = reports[0].summary
    assert (summary["stopped"], summary["n_asked"], summary["ci_low"]) == (True, None, None)
    with pytest.raises(NotComparable, match=f"after {settled.n_decided} items of a stream"):
        compare(reports[0], reports[1], allow=["samples"])


@pytest.mark.parametrize("n", [7, 20, 22, 23, 100])
def test_a_stream_that_ends_before_is_used_up(n: int, run_eval: RunEval) -> None:
    reports = [
        run_eval(
            stream(n),
            grade,
            endpoint=model(0.8, ticks=3),
            until="mean>0.8",
            max_concurrent=concurrent,
            experiment_name=f"at-{concurrent}",
        )
        for concurrent in (1, 16)
    ]
    plain = run_eval(stream(n), grade, endpoint=model(0.8), experiment_name="plain")
    for report in reports:
        settled = report.settled
        assert settled is not None
        assert (settled.decision, settled.n_asked, settled.is_early) == ("inconclusive", n, False)
        assert f"with all {n} samples used up" in settled.sentence
        assert summary_of(report) == summary_of(plain)
    assert replace_spent(reports[0]) == replace_spent(reports[1])


def test_whether_the_end_of_a_stream_was_read_changes_nothing_of_a_stop(run_eval: RunEval) -> None:
    """With 64 in flight all of it is read before the look that decides, with one it is not."""
    reports = [
        run_eval(
            stream(22),
            grade,
            endpoint=model(1.0),
            until="mean>0.5",
            max_concurrent=concurrent,
            experiment_name=f"at-{concurrent}",
        )
        for concurrent in (1, 64)
    ]
    assert reports[0].settled is not None
    assert reports[0].settled.n_decided in (20, 22)
    assert summary_of(reports[0]) == summary_of(reports[1])
    assert replace_spent(reports[0]) == replace_spent(reports[1])


def test_a_stopped_stream_is_resumed_and_finished_like_a_set(run_eval: RunEval) -> None:
    settings = {"endpoint": model(0.8, ticks=3), "max_concurrent": 16}
    before = files_of(run_eval(stream(300), grade, **settings, until="mean>0.6"))
    assert "ahead.jsonl" in before
    after = files_of(run_eval(stream(300), grade, **settings, until="mean>0.6", resume=True))
    assert before == after
    changed = (replace(s, ground_truth="x") if s.id == "s3" else s for s in stream(300))
    with pytest.raises(ResumeMismatch, match="sample 's3' is not what it was"):
        run_eval(changed, grade, **settings, until="mean>0.6", resume=True)
    with pytest.raises(ResumeMismatch, match="not in the dataset any more"):
        run_eval(stream(19), grade, **settings, until="mean>0.6", resume=True)
    finished = run_eval(stream(300), grade, **settings, until="none", resume=True)
    plain = run_eval(stream(300), grade, **settings, experiment_name="plain")
    assert summary_of(finished) == summary_of(plain)


# --- What is refused ------------------------------------------------------------------------------


def test_a_reward_beyond_0_and_1_ends_the_run_and_says_why(run_eval: RunEval) -> None:
    with pytest.raises(EvalFailed, match="rewards between 0 and 1.*has 7"):
        run_eval(make_samples(60), lambda t, s: 7.0, until="mean>0.8")


def test_a_stream_with_a_limit_is_a_set_of_known_size(run_eval: RunEval) -> None:
    report = run_eval(stream(), grade, until="mean>0.5", endpoint=model(0.9), max_samples=200)
    assert report.settled is not None
    assert report.settled.n_asked == 200
    assert report.settled.looks_planned == 20


def test_what_needs_a_known_size_is_refused_on_a_stream_before_anything_runs(
    run_eval: RunEval, tmp_path: Path
) -> None:
    run_eval(SAMPLES, grade, endpoint=model(0.7), experiment_name="old")
    for settings, match in [
        ({"until": "mean>0.5", "keep_power": True}, "keep_power spends error by the share"),
        ({"until": "mean>0.5", "this_set": True}, "this_set is about the samples that are left"),
        (
            {"until": f"better than {tmp_path / 'old'}"},
            r"old has 400 samples, and .* stream.*: .*--limit 400, max_samples=400",
        ),
    ]:
        with pytest.raises(InvalidInput, match=match):
            run_eval(stream(), grade, endpoint=model(0.9), **settings)
        assert not (tmp_path / "run").exists()
    twice = replace(SAMPLES[0], id="twice")
    with pytest.raises(InvalidInput, match="'twice' of the stream has the content of an earlier"):
        run_eval(iter([*SAMPLES[:5], twice]), grade, endpoint=model(0.9), until="mean>0.5")


def test_a_claim_that_the_set_cannot_settle_is_refused_with_the_number_that_would_do(
    run_eval: RunEval, tmp_path: Path
) -> None:
    async def never(messages: list[Message]) -> str:
        raise AssertionError("asked")

    for until, n, settings in [
        ("mean>0.9", 20, {}),
        ("±0.01", 100, {}),
        ("mean>0.5", 5, {"repeats": 4}),
        ("mean>0.5", 2, {}),
    ]:
        with pytest.raises(
            InvalidInput, match=r"cannot settle that .*: that takes [0-9,]+ or more"
        ):
            run_eval(make_samples(n), grade, endpoint=never, until=until, **settings)
        assert not (tmp_path / "run").exists(), "nothing ran"


def test_a_baseline_that_no_comparison_would_take_is_refused_before_anything_runs(
    run_eval: RunEval, tmp_path: Path
) -> None:
    async def never(messages: list[Message]) -> str:
        raise AssertionError("asked")

    def refused(baseline: str, match: str, samples: Any = SAMPLES, **settings: Any) -> None:
        with pytest.raises((InvalidInput, RunDirectoryError), match=match):
            run_eval(
                samples,
                settings.pop("score_fn", grade),
                endpoint=never,
                until=f"better than {tmp_path / baseline}",
                experiment_name="new",
                **settings,
            )
        assert not (tmp_path / "new").exists()

    run_eval(SAMPLES, grade, endpoint=model(0.7), experiment_name="old")
    run_eval(SAMPLES, grade, endpoint=model(0.99), experiment_name="stopped", until="mean>0.5")
    refused("missing", "baseline that is not there")
    refused("stopped", "stopped by until='mean>0.5' after .* of 400 items")
    refused("old", "another score function", score_fn=lambda t, s: 0.5)
    refused("old", "does not have 1 of these 401", [*SAMPLES, Sample("more", {"question": "?"})])
    changed = [replace(SAMPLES[0], ground_truth="another"), *SAMPLES[1:]]
    refused("old", "does not have 1 of these 400.*: s0", changed)
    with pytest.raises(InvalidInput, match="name the baseline by its number, such as new@1"):
        run_eval(SAMPLES, grade, endpoint=never, until="better than new", experiment_name="new")


# --- Going on -------------------------------------------------------------------------------------


def files_of(report: EvalReport) -> dict[str, bytes]:
    assert report.path is not None
    return {path.name: path.read_bytes() for path in sorted(report.path.iterdir())}


def test_a_stopped_run_that_is_resumed_stays_byte_for_byte(run_eval: RunEval) -> None:
    settings = {"until": "mean>0.8", "endpoint": model(0.92, ticks=3), "max_concurrent": 16}
    before = files_of(run_eval(SAMPLES, grade, **settings))
    assert "ahead.jsonl" in before
    assert files_of(run_eval(SAMPLES, grade, **settings, resume=True)) == before


def test_until_none_finishes_the_set_as_an_ordinary_run(run_eval: RunEval, tmp_path: Path) -> None:
    asked: list[str] = []
    answer = model(0.92, ticks=3, log=asked)
    settings = {"endpoint": answer, "max_concurrent": 16}
    stopped = run_eval(SAMPLES, grade, **settings, until="mean>0.8")
    assert stopped.settled is not None
    assert json.loads((tmp_path / "run" / "run.json").read_text())["version"] == 2
    finished = run_eval(SAMPLES, grade, **settings, until="none", resume=True)
    assert sorted(asked) == sorted(s.ground_truth for s in SAMPLES), "each sample is asked once"
    plain = run_eval(SAMPLES, grade, **settings, experiment_name="plain")
    assert finished.settled is None
    assert finished.summary == plain.summary
    assert finished.summary["ci_low"] is not None
    assert summary_of(finished) == summary_of(plain)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["version"] == 1
    assert not ahead_path(tmp_path / "run" / "results.jsonl").exists()
    assert compare(plain, finished).overall.difference == 0


def test_another_claim_about_answers_that_were_seen_is_refused(run_eval: RunEval) -> None:
    settings = {"endpoint": model(0.92), "resume": True}
    run_eval(SAMPLES, grade, **settings, until="mean>0.8")
    for until in ("mean>0.85", None):
        with pytest.raises(ResumeMismatch, match=r"until.*mean>0\.8"):
            run_eval(SAMPLES, grade, **settings, until=until)
    with pytest.raises(ResumeMismatch, match="level was"):
        run_eval(SAMPLES, grade, **settings, until="mean>0.8", level=0.1)
    run_eval(SAMPLES, grade, **settings, experiment_name="plain")
    with pytest.raises(ResumeMismatch, match="until was None"):
        run_eval(SAMPLES, grade, **settings, until="mean>0.8", experiment_name="plain")


def test_errored_items_run_again_and_the_stop_is_looked_for_anew(run_eval: RunEval) -> None:
    broken = {s.ground_truth for s in ordered_by_id(SAMPLES, 0)[:3]}
    works = model(1.0)

    async def answer(messages: list[Message]) -> str:
        number = messages[-1].text.split()[-1].rstrip("?")
        if number in broken:
            raise ValueError("broken")
        return await works(messages)

    settings = {"endpoint": answer, "until": "mean>0.8", "max_concurrent": 4}
    first = run_eval(SAMPLES, grade, **settings).settled
    broken.clear()
    report = run_eval(SAMPLES, grade, **settings, resume=True)
    assert first is not None
    assert report.settled is not None
    assert report.settled.n_decided == 40 < first.n_decided
    assert report.summary["n"] == len(report.results) == 40


KILLED = """
import os, sys
import anyio
from heldout import EvalConfig, evaluate
from tests._evals.test_stopping import SAMPLES, grade, model, stream
calls = os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
allowed = [int(sys.argv[3])]  # so many may be scored; then it waits to be killed
answers = model(0.87, ticks=3)

async def answer(messages):
    if allowed[0] <= 0:
        await anyio.sleep_forever()
    return await answers(messages)

def score_fn(trajectory, sample):
    allowed[0] -= 1
    os.write(calls, (sample.id + "\\n").encode())
    return grade(trajectory, sample)

config = EvalConfig(endpoint=answer, output_dir=sys.argv[1], experiment_name="run", resume=True,
                    max_concurrent=16, until="mean>0.8", progress=False)
samples = stream() if sys.argv[4] == "stream" else SAMPLES
anyio.run(evaluate, samples, config, score_fn)
"""


@pytest.mark.integration
@pytest.mark.parametrize("samples", ["set", "stream"])
def test_killed_and_resumed_it_stops_where_an_uninterrupted_run_stops(
    samples: str, tmp_path: Path
) -> None:
    script = tmp_path / "eval.py"
    script.write_text(KILLED)

    def start(name: str, allowed: int = 10_000) -> subprocess.Popen[bytes]:
        out, calls = tmp_path / name, tmp_path / f"{name}.calls"
        command = [sys.executable, str(script), str(out), str(calls), str(allowed), samples]
        root = str(Path(__file__).parents[2])
        paths = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths})

    assert start("whole").wait(120) == 0
    run = tmp_path / "killed" / "run"

    def done() -> set[tuple[str, int]]:
        names = ("results.jsonl", "ahead.jsonl")
        return {item for name in names for item in journal_items(run / name)}

    for allowed in (9, 40, 33):
        before, process = len(done()), start("killed", allowed)
        while len(done()) < before + allowed:
            assert process.poll() is None, "it must not have stopped by itself"
            time.sleep(0.001)
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    unfinished = EvalReport.load(run)
    assert unfinished.summary["complete"] is False
    assert unfinished.settled is None
    assert start("killed").wait(120) == 0
    whole, killed = (EvalReport.load(tmp_path / name / "run") for name in ("whole", "killed"))
    assert whole.settled is not None
    assert whole.settled.is_early
    assert summary_of(whole) == summary_of(killed)
    assert replace_spent(whole) == replace_spent(killed)
    items = [*journal_items(run / "results.jsonl"), *journal_items(run / "ahead.jsonl")]
    assert len(items) == len(set(items)), "no item is there twice"
    calls = (tmp_path / "killed.calls").read_text().split()
    assert len(calls) <= len(items) + 3 * 16, "only what was in flight at a kill ran again"


# --- Readers --------------------------------------------------------------------------------------


@pytest.fixture
def stopped(run_eval: RunEval) -> EvalReport:
    return run_eval(SAMPLES, grade, endpoint=model(0.92, ticks=3), until="mean>0.8", note="seen")


def test_a_stopped_run_is_not_compared_like_an_ordinary_one(
    stopped: EvalReport, run_eval: RunEval
) -> None:
    plain = run_eval(SAMPLES, grade, endpoint=model(0.7), experiment_name="plain")
    for judge in (
        lambda: compare(plain, stopped, allow=["samples"]),
        lambda: gate(stopped, min_mean=0.5),
        lambda: pass_at_k(stopped, 1),
    ):
        with pytest.raises(NotComparable, match=r"stopped by until='mean>0\.8' after"):
            judge()
    allowed = compare(plain, stopped, allow=["samples", "incomplete"])
    assert "incomplete" in {mismatch.kind for mismatch in allowed.mismatches}


def test_a_gate_judges_a_stopped_run_by_its_own_claim_alone(
    stopped: EvalReport, run_eval: RunEval, tmp_path: Path
) -> None:
    verdict = gate(stopped, min_mean=0.8)
    assert verdict.outcome == "pass"
    assert stopped.settled is not None
    [check] = verdict.checks
    assert check.interval is not None
    assert (check.interval.low, check.interval.high) == stopped.settled.interval
    for other in ({"min_mean": 0.8, "confidence": 0.9}, {"max_mean": 0.8}, {"min_mean": 0.79}):
        with pytest.raises(NotComparable, match="was stopped by until"):
            gate(stopped, **other)
    old = run_eval(SAMPLES, grade, endpoint=model(0.7, "old"), experiment_name="old")
    other = run_eval(SAMPLES, grade, endpoint=model(0.7, "old"), experiment_name="other")
    until = f"not worse than {tmp_path / 'old'} by 0.1"
    new = run_eval(SAMPLES, grade, endpoint=model(0.3), experiment_name="new", until=until)
    assert gate(new, baseline=old, no_worse_than=0.1).outcome == "fail"
    with pytest.raises(NotComparable):
        gate(new, baseline=other, no_worse_than=0.1)


def test_every_number_over_a_stopped_run_is_of_what_it_stopped_at(stopped: EvalReport) -> None:
    n = stopped.summary["n"]
    assert stopped.settled is not None
    assert stopped.settled.n_spent > n
    assert len(stopped.results) == n
    slices = stopped.summarize(by="difficulty")
    assert sum(part["n"] for part in slices.values()) == n
    assert all(part["ci_low"] is None and part["stopped"] for part in slices.values())
    assert stopped.where("metadata.difficulty = 'easy'").summary["ci_low"] is None
    assert summarize(stopped.results)["n"] == n
    with query(stopped, "select count(*) from results") as found:
        assert list(found.rows) == [(n,)]
        assert found.note is not None
        assert "was stopped by until" in found.note
    about = stopped.to_pandas().attrs["heldout"]
    assert about["n"] == n
    assert about["n_asked"] == 400
    assert about["settled"]["decision"] == "true"


def test_what_was_in_flight_at_a_stop_is_counted_as_spent_and_is_no_part_of_a_number(
    run_eval: RunEval, tmp_path: Path
) -> None:
    class Counted:
        async def complete(self, messages: list[Message], sampling: Any, tools: Any) -> Completion:
            answer = await model(0.92, ticks=3)(messages)
            return Completion(Message("assistant", answer), "stop", Usage(100, 10))

        def describe(self) -> dict[str, Any]:
            return {"kind": "counted", "model": "m"}

    settings = {"endpoint": Counted(), "price": Price(1, 2), "max_concurrent": 8}
    report = run_eval(SAMPLES, grade, **settings, until="mean>0.8")
    settled, ahead = report.settled, report.usage_ahead
    assert settled is not None
    assert ahead is not None
    beyond = settled.n_spent - settled.n_decided
    assert 0 < beyond == ahead.n == len(journal_items(tmp_path / "run" / "ahead.jsonl"))
    assert (ahead.prompt_tokens, ahead.completion_tokens) == (100 * beyond, 10 * beyond)
    assert ahead.cost == pytest.approx(beyond * 120 / 1e6)
    assert report.usage.prompt_tokens == 100 * settled.n_decided
    lines = [block.parts for block in build_report(report).blocks if isinstance(block, Line)]
    shown = " ".join(str(part) for parts in lines for part in parts)
    assert f"run beyond the stop: {100 * beyond:,} in, {10 * beyond:,} out, cost" in shown
    report.save(tmp_path / "copy")
    assert EvalReport.load(tmp_path / "copy").usage_ahead == ahead
    finished = run_eval(SAMPLES, grade, **settings, until="none", resume=True)
    assert finished.usage_ahead is None
    assert finished.usage.prompt_tokens == 100 * 400


def test_a_claim_about_a_baseline_says_that_its_level_is_of_one_comparison(
    run_eval: RunEval, tmp_path: Path
) -> None:
    old = run_eval(SAMPLES, grade, endpoint=model(0.7), experiment_name="old")
    claim = f"not worse than {tmp_path / 'old'} by 0.2"
    settled = run_eval(SAMPLES, grade, endpoint=model(0.72), until=claim).settled
    assert settled is not None
    assert settled.scope is not None
    assert "of this one comparison" in settled.scope
    alone = run_eval(SAMPLES, grade, endpoint=model(0.9), until="mean>0.8", experiment_name="m")
    assert alone.settled is not None
    assert alone.settled.scope is None
    assert old.settled is None


def test_a_copy_of_a_stopped_run_still_says_that_it_was_stopped(
    stopped: EvalReport, tmp_path: Path
) -> None:
    stopped.save(tmp_path / "copy")
    stopped.where("metadata.difficulty = 'easy'").save(tmp_path / "part")
    for name in ("copy", "part"):
        copy = EvalReport.load(tmp_path / name)
        assert copy.settled is not None
        assert copy.settled.claim == "mean>0.8"
        assert copy.summary["ci_low"] is None
    assert summary_of(EvalReport.load(tmp_path / "copy")) == summary_of(stopped)


def test_a_rescored_run_says_that_other_scores_stopped_it(stopped: EvalReport) -> None:
    again = anyio.run(rescore, stopped, lambda trajectory, sample: 1.0)
    assert again.settled is not None
    assert again.settled.decision == "inconclusive"
    assert "under its own score function" in again.settled.sentence
    lines = [block.parts for block in build_report(again).blocks if isinstance(block, Line)]
    said = " ".join(str(part) for parts in lines for part in parts)
    assert "and score it again" in said
    assert "sequential" not in said, "the rule and its level are not of these scores"
    assert again.summary["n"] == stopped.summary["n"]
    assert again.summary["ci_low"] is None
