"""`heldout compare`: what is said of two runs, for people, as JSON and as Markdown."""

from __future__ import annotations

import asyncio
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from heldout import EvalConfig, Sample, evaluate
from heldout._core.format import number, p_value, printable
from heldout.analysis import compare
from heldout.cli._tables import MARKDOWN_CHARACTERS, MARKDOWN_ROWS, escape_markdown, render_markdown
from heldout.cli.compare import comparison_json
from heldout.reporting.blocks import Column, Report, Table
from heldout.reporting.blocks import code as code_span
from heldout.store.run_dir import RunDir, RunInfo, now
from heldout.training.curve.points import CurvePoint, CurveWriter
from tests.cli.conftest import Heldout
from tests.cli.runs import (
    BETTER,
    BROKEN,
    HOSTILE,
    LEVELS,
    SIMILAR,
    A,
    Page,
    check_markdown,
    make_hostile,
    make_run,
    other_score_fn,
    rows,
)
from tests.cli.test_schema import Write, check

# --- What is said -------------------------------------------------------------------------------


def test_a_comparison_says_who_how_how_much_and_how_sure(runs: None, heldout: Heldout) -> None:
    outcome = heldout("compare", "before", "after")
    assert (outcome.code, outcome.err) == (0, "")
    found = compare("outputs/evals/before", "outputs/evals/after")
    low, high = found.overall.interval.low, found.overall.interval.high
    model = "make_run.<locals>.model"
    assert rows(outcome.out) == [
        [f"A: before (model: {model}); 60 samples, 60 items, 0 errored"],
        [f"B: after (model: {model}); 60 samples, 60 items, 0 errored"],
        ["reward, paired by sample: 60 samples"],
        ["A", "B", "B - A", "95% interval", "p", "samples"],
        ["reward", "0.250", "0.717", "+0.467", f"{low:.3f} … {high:.3f}", "< 0.001", "60"],
        ["B wins 29 samples, loses 1, and ties 30. Flips (by reward ≥ 0.5): gained 29, lost 1."],
        [f"Minimum detectable effect: {found.minimum_detectable:.3f} at 80% power and p < 0.05."],
        [f"B is better: +0.467 ({low:.3f} … {high:.3f})."],
    ]
    assert heldout("compare", "after", "--baseline", "before").out == outcome.out


@pytest.mark.parametrize(
    ("arguments", "verdict"),
    [
        (["after", "before"], r"B is worse: -0\.467 \(-0\..*"),
        (
            ["before", "similar"],
            r"Inconclusive: the difference is between -0\.\d{3} and 0\.\d{3}\.",
        ),
        (["before", "after", "--metric", "right"], r"B is higher: \+0\.467 \(0\..*"),
        (["after", "before", "--metric", "right"], r"B is lower: -0\.467 \(-0\..*"),
    ],
)
def test_the_verdict_is_the_last_line(
    runs: None, heldout: Heldout, arguments: list[str], verdict: str
) -> None:
    assert re.fullmatch(verdict, heldout("compare", *arguments).out.splitlines()[-1])


def test_flips_lists_the_first_samples_each_way_with_both_rewards(
    runs: None, heldout: Heldout
) -> None:
    lines = heldout("compare", "before", "after", "--flips", "2").out.splitlines()
    titles = [line for line in lines if line.startswith(("gained ", "lost "))]
    assert titles == [
        "gained q1  0.000 → 1.000",
        "gained q2  0.000 → 1.000",
        "lost q56  1.000 → 0.000",
    ]
    start = lines.index(titles[0])
    assert [line.split() for line in lines[start + 1 : start + 5]] == [
        ["question", "1"],
        ["target", "–"],
        ["A", "0.0"],
        ["B", "1.0"],
    ]


def test_a_long_prompt_is_shown_with_its_end(heldout: Heldout) -> None:
    shots = "".join(f"Q: {i} plus one?\nA: {i + 1}\n\n" for i in range(100))
    samples = [Sample(f"q{i}", {"prompt": f"{shots}Q: {i} plus ten?\nA:"}) for i in range(2)]
    for name, reward in (("before", 0.0), ("after", 1.0)):
        config = EvalConfig(lambda _: "ten", experiment_name=name, progress=False)
        asyncio.run(evaluate(samples, config, lambda t, s, r=reward: r))
    out = heldout("compare", "before", "after", "--flips", "2", "--allow", "scorer").out
    shown = [line.split(maxsplit=1)[1] for line in out.splitlines() if line.startswith("question")]
    assert [(text[:14], text[-17:]) for text in shown] == [
        ("Q: 0 plus one?", f"Q: {i} plus ten? A:") for i in range(2)
    ]


def test_slices_are_in_order_and_corrected_for_their_number(runs: None, heldout: Heldout) -> None:
    out = heldout("compare", "before", "after", "--by", "difficulty").out
    found = compare("outputs/evals/before", "outputs/evals/after", by="difficulty")
    expected = []
    for level in ("easy", "medium", "hard"):
        one = next(one for one in found.slices if one.label == (level,))
        low, high = one.simultaneous_interval.low, one.simultaneous_interval.high
        expected.append([level, f"{low:.3f} … {high:.3f}", p_value(one.adjusted_p_value), "20"])
    shown = [row[:1] + row[4:] for row in rows(out) if row[0] in LEVELS]
    assert shown == expected
    assert "\n3 slices; p adjusted by Holm, intervals simultaneous.\n" in out


def test_where_items_errored_both_readings_are_shown(heldout: Heldout) -> None:
    make_run("a", A)
    make_run("b", [BROKEN] * 3 + BETTER[3:])
    out = heldout("compare", "a", "b", "--by", "difficulty").out
    assert "; 60 samples, 60 items, 3 errored\n" in out
    assert "reward, paired by sample: 57 of 60 samples of A and 60 of B; the others have no " in out
    readings = {row[0]: row for row in rows(out) if row[0] in ("scored in both", "errored as 0")}
    assert (readings["scored in both"][-1], readings["errored as 0"][-1]) == ("57", "60")
    assert "\nSlices, scored in both:\n" in out
    assert "\nSlices, errored as 0:\n" in out
    make_run("c", [-2.0, 1.0] * 30)  # 0 would be better than a failure
    assert "errored as -2" in heldout("compare", "c", "b").out


def test_where_the_readings_disagree_the_verdict_says_so(heldout: Heldout) -> None:
    make_run("a", [1.0, 0.0, 1.0, 1.0] * 10)
    make_run("b", [1.0, 1.0, 1.0, BROKEN] * 10)
    last = heldout("compare", "a", "b").out.splitlines()[-1]
    assert re.fullmatch(
        r"Inconclusive: it is \+0\.333 \(0.* … 0.*\) of what was scored, "
        r"but 0\.000 \(-0.* … 0.*\) with errored items as 0\.",
        last,
    )


def test_values_without_a_spread_say_so(heldout: Heldout) -> None:
    make_run("a", [3.0])
    make_run("b", [5.0])
    out = heldout("compare", "a", "b").out
    assert out.splitlines()[-1] == "Inconclusive: there is no spread to judge by."
    assert "Minimum detectable effect: unknown" in out
    assert ["reward", "3.000", "5.000", "+2.000", "–", "–", "1"] in rows(out)


def test_confidence_and_pass_threshold_are_those_asked_for(heldout: Heldout) -> None:
    make_run("a", [0.2, 0.6] * 20)
    make_run("b", [0.4, 0.6] * 15 + [0.4, 0.1] * 5)
    options = ("--confidence", "0.8", "--pass-threshold", "0.3")
    out = heldout("compare", "a", "b", *options).out
    assert rows(out)[3][3] == "80% interval"
    assert "Flips (by reward ≥ 0.3): gained 20, lost 5." in out
    found = json.loads(heldout("compare", "a", "b", *options, "--json").out)
    assert (found["confidence"], found["pass_threshold"]) == (0.8, 0.3)


def test_slices_without_a_pair_are_named(heldout: Heldout) -> None:
    about = [{"level": 10 - i % 8} for i in range(40)]
    make_run("a", [0.0, 1.0] * 20, metadata=about)
    broken = [BROKEN if i % 8 < 6 else 1.0 for i in range(40)]
    make_run("b", broken, metadata=about)
    said = "since no sample has a value on both sides: "
    out = heldout("compare", "a", "b", "--by", "level").out
    names = "; ".join(f"level={level}" for level in range(5, 10))
    assert f"\nNot among those scored in both, {said}{names}; 1 more.\n" in out
    assert "\n8 slices; p adjusted by Holm" in out
    assert "level=9; 1 more." in heldout("compare", "a", "b", "--by", "level", "--markdown").out
    options = ("--by", "level", "--unpaired", "--allow", "samples")
    make_run("d", [1.0, 0.0], metadata=[{"level": 10}, {"level": 2}], ids=["d0", "d1"])
    out = heldout("compare", "a", "d", *options).out
    assert f"\nNot compared, {said}level=2; level=3; " in out


def test_metric_cluster_and_unpaired_are_what_they_say(runs: None, heldout: Heldout) -> None:
    out = heldout("compare", "before", "after", "--metric", "size").out
    assert "\nsize, paired by sample: 60 samples\n" in out
    out = heldout("compare", "before", "after", "--cluster", "book").out
    assert "paired by sample: 60 samples, in 30 clusters by book\n" in out
    out = heldout("compare", "before", "after", "--unpaired").out
    assert "reward, not paired: 60 samples of A with 60 of B" in out
    assert "Flips" not in out
    assert [row[-1] for row in rows(out) if row[0] == "reward"] == ["60, 60"]
    out = heldout("compare", "before", "after", "--unpaired", "--flips", "3").out
    assert "There are no flips to list: the samples are not paired.\n" in out


# --- What is refused ----------------------------------------------------------------------------


def test_what_is_not_comparable_is_refused_with_the_option_that_allows_it(heldout: Heldout) -> None:
    make_run("a", A)
    make_run("b", BETTER[:50], score=other_score_fn)
    outcome = heldout("compare", "a", "b")
    assert (outcome.code, outcome.out) == (2, "")
    assert "samples: 10 samples only in a: 'q50', 'q51', 'q52', …" in outcome.err
    assert "scorer: " in outcome.err
    assert "--allow" in outcome.err
    allowed = heldout("compare", "a", "b", "--allow", "samples", "--allow", "scorer")
    assert allowed.code == 0
    assert "\nallowed to differ: samples: 10 samples only in a" in allowed.out
    assert "\nallowed to differ: scorer: " in allowed.out
    assert "50 of 60 samples of A and 50 of B; the others have no value on one side" in allowed.out


BAD_INPUT = [
    (["before", "nowhere"], "there is no run at nowhere"),
    (["before", "after", "--allow", "samples,scorer"], "allow takes some of samples, scorer"),
    (["before", "after", "--by", "difficulty,book"], "no key 'difficulty,book'"),
    (["before", "after", "--confidence", "95"], "confidence"),
    (["before", "after", "--plot", "x.txt"], "ends in one of .png, .svg, .pdf"),
    (["before"], "which two runs? heldout compare A B"),
    (["before", "after", "--baseline", "x"], "which two runs?"),
    (["before", "after", "--flips", "0"], "Invalid value for '--flips'"),
]


def test_of_three_runs_it_says_which_may_be_the_best(runs: None, heldout: Heldout) -> None:
    make_run("worst", [0.0] * 60)
    outcome = heldout("compare", "before", "after", "similar", "worst")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1] == "after is the best of 4."
    assert "Corrected for having been picked, the mean of after is" in " ".join(outcome.out.split())
    said = json.loads(heldout("compare", "before", "similar", "worst", "--json").out)
    assert said["decision"] == "cannot_tell_apart"
    assert {*said["best"]} == {"before", "similar"}
    check("compare-ranks", json.dumps(said))
    refused = heldout("compare", "before", "after", "similar", "--by", "level")
    assert refused.code == 2
    assert "--by is of two runs, and these are 3" in refused.err


def test_bad_input_exits_with_2_and_says_what_is_wrong(runs: None, heldout: Heldout) -> None:
    for arguments, said in BAD_INPUT:
        outcome = heldout("compare", *arguments)
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err


# --- Names --------------------------------------------------------------------------------------


@pytest.fixture
def curve(folder: Path) -> Path:
    """A curve with conversations at steps 0 and 50, a point without any, and a skip."""
    home = Path("outputs/evals/rl")
    make_run("00000000", A, output_dir=f"{home}/steps")
    make_run("00000050", SIMILAR, output_dir=f"{home}/steps")
    make_run("00000050-2", BETTER, output_dir=f"{home}/steps")
    info = RunInfo.new({"kind": "midrun", "label": "rl"}, {})
    info.status = "complete"
    RunDir(home).write_info(info)
    return home


@pytest.fixture
def points(curve: Path) -> None:
    """Step 50 was evaluated twice, the second time by an attempt that left step 100 behind."""
    make_run("00000100", BETTER, output_dir=f"{curve}/steps")
    write_points(
        curve,
        {"step": 0, "run": "steps/00000000"},
        {"step": 50, "run": "steps/00000050"},
        {"step": 100, "run": "steps/00000100"},
        {"step": 50, "run": "steps/00000050-2", "session": "two"},
        {"step": 200, "summary": None, "skipped": "no memory", "session": "two"},
    )


def test_evals_of_a_curve_are_named_by_their_step_or_as_the_last(
    points: None, heldout: Heldout
) -> None:
    out = heldout("compare", "rl@0", "rl@last").out
    assert out.startswith("A: rl@0 (model: ")
    assert "\nB: rl@last (model: " in out
    assert "B is better: +0.467" in out  # of the latest attempt
    same = heldout("compare", "outputs/evals/rl@0", "outputs/evals/rl@50").out
    assert same.splitlines()[2:] == out.splitlines()[2:]


def test_a_name_that_means_no_run_is_refused_with_those_that_would(
    points: None, heldout: Heldout
) -> None:
    make_run("plain", A)
    Path("outputs/evals/skips").mkdir()
    write_points(Path("outputs/evals/skips"), {"step": 1, "summary": None, "skipped": "no memory"})
    for run, said in (
        ("rl", "is a curve of many evals. Name one by its step, rl@STEP, or the last, rl@last: "),
        ("rl@70", "has no eval at step 70; there are 0, 50"),
        (
            "rl@100",
            "step 100 of outputs/evals/rl was superseded by a later attempt of the training",
        ),
        ("rl@200", "of step 200 were not saved; it was skipped: no memory"),
        ("rl@first", "Name one by its step, rl@STEP, or the last, rl@last: there are 0, 50"),
        ("plain@50", "outputs/evals/plain is a single run, so there is no @50 of it"),
        ("nowhere@50", "there is no run at nowhere"),
        ("skips@last", "has no last eval: no step has a result yet"),
    ):
        outcome = heldout("compare", "plain", run)
        assert (outcome.code, outcome.out) == (2, "")
        assert said in outcome.err


def write_points(home: Path, *points: dict[str, Any]) -> None:
    writer = CurveWriter(home / "curve.jsonl")
    for given in points:
        usual = {"label": "rl", "session": "one", "time": now(), "seconds": 1.0}
        writer.append(CurvePoint(**{**usual, "summary": {"n": 60, "mean": 0.5}, **given}))
    writer.close()


def test_what_a_curve_says_of_directories_is_looked_up_and_never_followed(
    curve: Path, heldout: Heldout
) -> None:
    make_run("plain", A)
    make_run("0", BETTER, output_dir=f"{curve}/steps")
    outside = ("../plain", "steps/../../plain", "/etc")
    for run in (*outside, "steps/00000050/", "steps/0", "steps/00000007"):
        write_points(curve, {"step": 50, "run": run})
        outcome = heldout("compare", "plain", "rl@50")
        assert (outcome.code, outcome.out) == (2, "")
        assert "the answers of step 50 are no longer in steps/" in outcome.err


def test_evals_of_several_labels_are_told_apart_by_their_label(
    curve: Path, heldout: Heldout
) -> None:
    write_points(
        curve,
        {"step": 0, "run": "steps/00000000"},
        {"step": 50, "run": "steps/00000050"},  # an attempt that was killed left a later one
        {"step": 50, "run": "steps/00000050-2", "label": "long@8k"},
    )
    for which in ("50", "last"):
        refused = heldout("compare", "rl@0", f"rl@{which}")
        assert refused.code == 2
        assert f"name one of them, RUN@long@8k:{which}, RUN@rl:{which}" in refused.err
        out = heldout("compare", "rl@0", f"rl@long@8k:{which}").out
        assert f"\nB: rl@long@8k:{which} (model: " in out
        assert "B is better: +0.467" in out
        assert "Inconclusive" in heldout("compare", "rl@0", f"rl@rl:{which}").out
    unknown = heldout("compare", "rl@0", "rl@short:50").err
    assert "the curve has no eval 'short'; it has long@8k, rl" in unknown


# --- JSON and pictures --------------------------------------------------------------------------


def test_as_json_it_is_one_line_with_every_number(
    runs: None, heldout: Heldout, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = heldout("compare", "before", "after", "--by", "difficulty", "--json")
    assert outcome.out.count("\n") == 1
    found = compare("outputs/evals/before", "outputs/evals/after", by="difficulty")
    said = json.loads(outcome.out)
    assert said == json.loads(json.dumps(comparison_json(found, None)))
    assert (said["gained_total"], said["lost_total"]) == (29, 1)
    assert said["overall"]["difference"] == found.overall.difference
    assert [part["slice"]["difficulty"] for part in said["slices"]] == [*LEVELS]
    few = json.loads(heldout("compare", "before", "after", "--json", "--flips", "2").out)
    assert [change["id"] for change in few["gained"]] == ["q1", "q2"]
    assert (few["gained_total"], len(few["lost"]), few["lost_total"]) == (29, 1, 1)
    assert {*few["gained"][0]} == {*["id", "a", "b", "question", "target", "answer_a", "answer_b"]}
    monkeypatch.setattr("heldout.cli.compare.JSON_FLIPS", 3)
    few = json.loads(heldout("compare", "before", "after", "--json").out)
    assert (len(few["gained"]), few["gained_total"]) == (3, 29)


def test_the_picture_is_written_and_said_beside_the_report(
    runs: None, heldout: Heldout, folder: Path
) -> None:
    outcome = heldout("compare", "before", "after", "--json", "--plot", "forest.SVG")
    assert (outcome.code, outcome.err) == (0, "Wrote forest.SVG.\n")
    assert json.loads(outcome.out)["verdict"] == "b_better"
    assert (folder / "forest.SVG").read_bytes().startswith(b"<?xml")


# --- Terminals ----------------------------------------------------------------------------------


def test_numbers_have_a_sign_where_they_are_differences() -> None:
    differences = (0.06, -0.06, 0.0, -0.0, None)
    assert [number(x, sign=True) for x in differences] == [
        "+0.060",
        "-0.060",
        "0.000",
        "0.000",
        "–",
    ]
    assert [p_value(p) for p in (None, 0.0009, 0.001, 1.0)] == ["–", "< 0.001", "0.001", "1.000"]


# --- Text from elsewhere ------------------------------------------------------------------------


@pytest.mark.parametrize("value", HOSTILE)
def test_in_markdown_a_text_renders_as_itself(value: str) -> None:
    shown = printable(value).replace("\n", "\\n")
    for place in ("{}", "- {}", "# {}", "| a | b |\n|---|---|\n| {} | b |"):
        harmless = Page(place.format("harmless"))
        page = Page(place.format(escape_markdown(value)))
        assert [tag for tag in page.tags if tag != "span"] == harmless.tags
        plain = "".join(harmless.texts).replace("harmless", shown)
        assert "".join(page.texts).split() == plain.split()
        # What GitHub looks for in a finished page is in no single piece of text.
        for piece in page.texts:
            assert not re.search(r"@\w|#\d|\$\S|https?:|www\.|:\w+:|GH-\d", piece, re.IGNORECASE)
    in_table = render_markdown(Report([Table([Column("a")], [[code_span(value)]])]))
    assert f"| <code>{escape_markdown(value)}</code> |" in in_table


def test_in_markdown_endless_texts_and_tables_are_cut() -> None:
    assert escape_markdown("x" * 10_000) == "x" * (MARKDOWN_CHARACTERS - 1) + "…"
    table = Table([Column("a")], [["x"]] * (MARKDOWN_ROWS + 5))
    lines = render_markdown(Report([table])).splitlines()
    assert lines[-1] == "… and 5 more; `--json` has all."
    assert len(lines) == 2 + MARKDOWN_ROWS + 2


def test_a_comparison_of_hostile_names_is_shown_and_never_obeyed(heldout: Heldout) -> None:
    make_hostile()
    arguments = ("compare", "a", "b", "--by", "key | `x` @user", "--flips", "30")
    said = heldout(*arguments)
    assert said.code == 0, said.err
    assert printable(said.out) == said.out
    outcome = heldout(*arguments, "--markdown")
    check_markdown(outcome, tables=2)
    ids = html.unescape(outcome.out)
    assert "0 a | b" in re.sub("</?span>", "", ids)


def test_markdown_has_the_verdict_as_its_heading_and_the_numbers_as_tables(
    runs: None, heldout: Heldout
) -> None:
    out = heldout("compare", "before", "after", "--by", "difficulty", "--markdown").out
    first = heldout("compare", "before", "after").out.splitlines()[-1]
    assert out.startswith(f"### {first}\n\n- A: <code>before</code> (model: <code>make")
    assert "| :-- | --: | --: | --: | :-- | --: | --: |" in out
    assert [
        line.split(" | ")[0]
        for line in out.splitlines()
        if line.startswith("| <code>") and " | 0." in line
    ] == [f"| <code>{name}</code>" for name in ("reward", "easy", "medium", "hard")]
    assert "<summary>Flips: gained 29, lost 1</summary>" in out
    assert "- lost <code>q56</code>  1.000 → 0.000" in out
    flip = "- gained <code>q1</code>  0.000 → 1.000\n- question  1\n- target    –\n- A         "
    assert flip in out
    assert out.count("- gained ") == 10


def test_a_slice_of_a_text_is_quoted_only_beside_a_number_that_looks_the_same(
    write: Write, heldout: Heldout
) -> None:
    write(
        "mixed.py",
        """
        from heldout import EvalConfig, Sample

        def load_dataset():
            levels = [10, "10", "easy", 10, "10", "easy"]
            return [Sample(f"s{i}", {"question": str(i)}, str(i % 2), {"level": level})
                    for i, level in enumerate(levels)]

        def answer(messages):
            return "1"

        def score_fn(trajectory, sample):
            return trajectory.answer == sample.ground_truth

        config = EvalConfig(endpoint=answer)
        """,
    )
    for _ in range(2):
        assert heldout("run", "mixed.py").code == 0
    out = heldout("compare", "mixed@1", "mixed@2", "--by", "level").out
    shown = [line.split()[0] for line in out.splitlines() if line.split()[:1]]
    assert [cell for cell in shown if cell in ("10", '"10"', "easy", '"easy"')] == [
        *("10", "easy", '"10"'),
    ]
