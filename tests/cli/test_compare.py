"""`heldout compare`: what is said of two runs, for people, as JSON and as Markdown."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt

from heldout import EvalConfig, Message, Metric, Sample, Score, Trajectory, evaluate
from heldout.analysis import compare
from heldout.cli.differences import p_text, signed
from heldout.cli.markdown import LONGEST, MOST_ROWS, code, table, text
from heldout.cli.text import printable
from heldout.midrun.curve import CurvePoint, CurveWriter
from heldout.store.rundir import RunDir, RunInfo, now
from tests.cli.conftest import Heldout, Outcome
from tests.cli.test_cli_process import Terminal

LEVELS = ("hard", "easy", "medium")
BROKEN = "broken"


def score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    return Score(
        (Metric("right", float(trajectory.answer), weight=1.0), Metric("size", len(sample.id)))
    )


def other_score_fn(trajectory: Trajectory, sample: Sample) -> Score:
    return Score((Metric("right", float(trajectory.answer) / 2, weight=1.0),))


def make_run(
    name: str,
    answers: Sequence[float | str],
    *,
    ids: Sequence[str] | None = None,
    metadata: Sequence[Mapping[str, object]] | None = None,
    score: Any = score_fn,
    output_dir: str = "outputs/evals",
    repeats: int = 1,
) -> None:
    """A run whose model gives these answers, one a sample; "broken" is one that never comes."""
    names = ids or [f"q{i}" for i in range(len(answers))]
    about = metadata or [{"difficulty": LEVELS[i % 3], "book": i // 2} for i in range(len(answers))]
    samples = [
        Sample(id, {"question": f"{i}"}, metadata=dict(data))
        for i, (id, data) in enumerate(zip(names, about, strict=True))
    ]

    def model(messages: Sequence[Message]) -> str:
        answer = answers[int(messages[-1].text)]
        if answer == BROKEN:
            raise ValueError("it broke")
        return str(answer)

    config = EvalConfig(
        endpoint=model,
        experiment_name=name,
        output_dir=output_dir,
        progress=False,
        retries=0,
        repeats=repeats,
    )
    asyncio.run(evaluate(samples, config, score))


A = [1.0, 0.0, 0.0, 0.0] * 15
BETTER = [1.0, 1.0, 1.0, 0.0] * 14 + [0.0, 0.0, 0.0, 1.0]
SIMILAR = [1.0, 0.0, 0.0, 0.0] * 14 + [0.0, 1.0, 0.0, 0.0]


@pytest.fixture
def runs(folder: Path) -> None:
    make_run("before", A)
    make_run("after", BETTER)
    make_run("similar", SIMILAR)


def rows(out: str) -> list[list[str]]:
    """The cells of each line."""
    return [re.split(r" {2,}", line.strip()) for line in out.splitlines() if line.strip(" ─")]


# --- What is said -------------------------------------------------------------------------------


def test_a_comparison_says_who_how_how_much_and_how_sure(runs: None, heldout: Heldout) -> None:
    outcome = heldout("compare", "before", "after")
    assert (outcome.code, outcome.err) == (0, "")
    found = compare("outputs/evals/before", "outputs/evals/after")
    assert found.overall.interval is not None
    low, high = found.overall.interval.low, found.overall.interval.high
    model = "make_run.<locals>.model"
    assert rows(outcome.out) == [
        [f"A: before, answered by {model}; 60 samples, 60 items, 0 errored"],
        [f"B: after, answered by {model}; 60 samples, 60 items, 0 errored"],
        ["reward, paired by sample: 60 samples"],
        ["A", "B", "B - A", "95% interval", "p", "samples"],
        ["reward", "0.250", "0.717", "+0.467", f"{low:.3f} … {high:.3f}", "< 0.001", "60"],
        ["B wins 29 samples, loses 1, and ties 30. Flips (passed: ≥ 0.5): gained 29, lost 1."],
        [
            f"A true difference of {found.minimum_detectable:.3f} would have been seen four times "
            "in five."
        ],
        [f"B is better: +0.467 ({low:.3f} … {high:.3f})."],
    ]


def test_the_verdict_is_one_of_three_and_never_that_there_is_no_difference(
    runs: None, heldout: Heldout
) -> None:
    def last(*names: str) -> str:
        outcome = heldout("compare", *names)
        assert outcome.code == 0
        return outcome.out.splitlines()[-1]

    assert last("after", "before").startswith("B is worse: -0.467 (-0.")
    assert re.fullmatch(
        r"Cannot tell: the difference is between -0\.\d{3} and 0\.\d{3}\.",
        last("before", "similar"),
    )


def test_flips_lists_the_first_samples_each_way_with_both_rewards(
    runs: None, heldout: Heldout
) -> None:
    out = heldout("compare", "before", "after", "--flips", "2").out
    assert [row for row in rows(out) if row[0] in ("gained", "lost")] == [
        ["gained", "q1", "0.000", "1.000"],
        ["gained", "q2", "0.000", "1.000"],
        ["lost", "q56", "1.000", "0.000"],
    ]


def test_slices_are_in_order_and_corrected_for_their_number(runs: None, heldout: Heldout) -> None:
    out = heldout("compare", "before", "after", "--by", "difficulty").out
    found = compare("outputs/evals/before", "outputs/evals/after", by="difficulty")
    slices = {str(one.label[0]): one for one in found.slices}  # type: ignore[index]
    shown = [row for row in rows(out) if row[0] in LEVELS]
    assert [row[0] for row in shown] == ["easy", "medium", "hard"]
    for level, *cells in shown:
        around = slices[level].simultaneous_interval
        assert around is not None
        assert cells[3] == f"{around.low:.3f} … {around.high:.3f}"
        assert cells[4:] == [p_text(slices[level].adjusted_p_value), "20"]
    assert "\n3 slices; p adjusted by Holm, intervals simultaneous.\n" in out


def test_a_key_that_samples_lack_is_a_dash(heldout: Heldout) -> None:
    about: list[dict[str, object]] = [{"level": 10}, {"level": 2}, {}, {"level": 2}]
    make_run("a", [0.0, 1.0, 0.0, 1.0], metadata=about)
    make_run("b", [1.0, 1.0, 0.0, 0.0], metadata=about)
    shown = rows(heldout("compare", "a", "b", "--by", "level").out)
    assert [row[0] for row in shown if row[-1] in "12" and len(row) > 1] == ["2", "10", "–"]


def test_where_items_errored_both_readings_are_shown(heldout: Heldout) -> None:
    make_run("a", A)
    make_run("b", [BROKEN] * 3 + BETTER[3:])
    out = heldout("compare", "a", "b", "--by", "difficulty").out
    assert "; 60 samples, 60 items, 3 errored; 3 samples not compared\n" in out
    readings = {row[0]: row for row in rows(out) if row[0] in ("scored only", "errored as 0")}
    assert (readings["scored only"][-1], readings["errored as 0"][-1]) == ("57", "60")
    assert "\nSlices, scored only:\n" in out
    assert "\nSlices, errored as 0:\n" in out


def test_where_the_readings_disagree_the_verdict_says_so(heldout: Heldout) -> None:
    make_run("a", [1.0, 0.0, 1.0, 1.0] * 10)
    make_run("b", [1.0, 1.0, 1.0, BROKEN] * 10)
    last = heldout("compare", "a", "b").out.splitlines()[-1]
    assert re.fullmatch(
        r"Cannot tell: it is \+0\.333 \(0.* … 0.*\) of what was scored, "
        r"but 0\.000 \(-0.* … 0.*\) with errored items as 0\.",
        last,
    )


def test_values_without_a_spread_say_so(heldout: Heldout) -> None:
    make_run("a", [3.0])
    make_run("b", [5.0])
    out = heldout("compare", "a", "b").out
    assert out.splitlines()[-1] == "Cannot tell: 1 sample without a spread to judge by."
    assert "How large a difference would have been seen is not known" in out
    assert ["reward", "3.000", "5.000", "+2.000", "–", "–", "1"] in rows(out)


def test_metric_cluster_and_unpaired_are_what_they_say(runs: None, heldout: Heldout) -> None:
    out = heldout("compare", "before", "after", "--metric", "size").out
    assert "\nsize, paired by sample: 60 samples\n" in out
    out = heldout("compare", "before", "after", "--cluster", "book").out
    assert "paired by sample: 60 samples, in 30 clusters of the same book\n" in out
    out = heldout("compare", "before", "after", "--unpaired").out
    assert "reward, not paired: 60 samples of A against 60 of B" in out
    assert "Flips" not in out
    assert [row[-1] for row in rows(out) if row[0] == "reward"] == ["60, 60"]


# --- What is refused ----------------------------------------------------------------------------


def test_what_is_not_comparable_is_refused_with_the_option_that_allows_it(heldout: Heldout) -> None:
    make_run("a", A)
    make_run("b", BETTER[:50], score=other_score_fn)
    outcome = heldout("compare", "a", "b")
    assert (outcome.code, outcome.out) == (1, "")
    assert "samples: 10 samples only in a: 'q50', 'q51', 'q52', …" in outcome.err
    assert "scorer: " in outcome.err
    assert "--allow" in outcome.err
    allowed = heldout("compare", "a", "b", "--allow", "samples", "--allow", "scorer")
    assert allowed.code == 0
    assert "\nallowed to differ: samples: 10 samples only in a" in allowed.out
    assert "\nallowed to differ: scorer: " in allowed.out
    assert "\nnote: " in allowed.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["before", "nowhere"], "there is no run at nowhere"),
        (["before", "before"], "compared with itself"),
        (["before", "after", "--by", "colour"], "colour"),
        (["before", "after", "--metric", "speed"], "no metric 'speed'"),
        (["before", "after", "--allow", "all"], "allow takes some of samples, scorer"),
        (["before", "after", "--plot", "x.txt"], "ends in one of .png, .svg, .pdf"),
        (["before", "after", "--json", "--markdown"], "--json or --markdown, not both"),
        (["before"], "Missing argument 'B'"),
        (["before", "after", "--flips", "0"], "Invalid value for '--flips'"),
    ],
)
def test_bad_input_exits_with_1_and_says_what_is_wrong(
    runs: None, heldout: Heldout, arguments: list[str], said: str
) -> None:
    outcome = heldout("compare", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
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


def add_points(home: Path, *steps: int, skipped: int | None = None) -> None:
    writer = CurveWriter(home / "curve.jsonl")
    for step in (*steps, *([] if skipped is None else [skipped])):
        summary: dict[str, int | float | bool | None] = {"n": 60, "mean": 0.5}
        writer.append(
            CurvePoint(
                label="rl",
                step=step,
                session="one",
                time=now(),
                seconds=1.0,
                summary=None if step == skipped else summary,
                skipped="no memory" if step == skipped else None,
            )
        )
    writer.close()


def test_evals_of_a_curve_are_named_by_their_step_or_as_the_last(
    curve: Path, heldout: Heldout
) -> None:
    add_points(curve, 0, 50, skipped=100)
    out = heldout("compare", "rl@0", "rl@last").out
    assert out.startswith("A: rl@0, answered by")
    assert "\nB: rl@last, answered by" in out
    assert "B is better: +0.467" in out  # of the latest attempt
    same = heldout("compare", f"{curve}@0", f"{curve}@50").out
    assert same.splitlines()[2:] == out.splitlines()[2:]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("rl", "is a curve of many evals. Name one by its step, rl@STEP, or the last, rl@last: "),
        ("rl@70", "has no eval at step 70; there are 0, 50"),
        ("rl@100", "of step 100 no conversations were kept, it was skipped: no memory"),
        ("rl@first", "after the @ of rl@first comes a step, or last; got 'first': there are 0, 50"),
        ("plain@50", "outputs/evals/plain has no curve.jsonl, so there is no @50 of it"),
        ("nowhere@50", "there is no run at nowhere"),
    ],
)
def test_a_name_that_means_no_run_is_refused_with_those_that_would(
    curve: Path, heldout: Heldout, given: str, said: str
) -> None:
    add_points(curve, 0, 50, skipped=100)
    make_run("plain", A)
    outcome = heldout("compare", "plain", given)
    assert outcome.code == 1
    assert said in outcome.err


def test_a_curve_without_results_has_no_last(curve: Path, heldout: Heldout) -> None:
    add_points(curve, skipped=100)
    assert "has no last eval: no step has a result yet" in heldout("compare", "rl@0", "rl@last").err


def test_a_directory_whose_name_has_an_at_sign_is_meant_by_its_name(
    curve: Path, heldout: Heldout
) -> None:
    add_points(curve, 0, 50)
    make_run("a", A)
    make_run("rl@50", SIMILAR)
    out = heldout("compare", "a", "rl@50").out
    assert "Cannot tell" in out  # the step has another verdict
    assert heldout("compare", "a", "outputs/evals/rl@50").out == out


# --- JSON and pictures --------------------------------------------------------------------------


def test_as_json_it_is_one_line_with_every_number(runs: None, heldout: Heldout) -> None:
    outcome = heldout("compare", "before", "after", "--by", "difficulty", "--json")
    assert outcome.out.count("\n") == 1
    found = compare("outputs/evals/before", "outputs/evals/after", by="difficulty")
    assert json.loads(outcome.out) == json.loads(json.dumps(found.as_dict()))


def test_the_picture_is_written_and_said_beside_the_report(
    runs: None, heldout: Heldout, folder: Path
) -> None:
    outcome = heldout("compare", "before", "after", "--json", "--plot", "forest.SVG")
    assert (outcome.code, outcome.err) == (0, "Wrote forest.SVG.\n")
    assert json.loads(outcome.out)["verdict"] == "better"
    assert (folder / "forest.SVG").read_bytes().startswith(b"<?xml")


# --- Terminals ----------------------------------------------------------------------------------


@pytest.mark.integration
@pytest.mark.parametrize("columns", [80, 120])
def test_nothing_is_wider_than_the_terminal(runs: None, columns: int) -> None:
    arguments = ("compare", "before", "after", "--by", "difficulty", "--flips", "2")
    terminal = Terminal(*arguments, columns=columns)
    assert terminal.read_all() == 0
    plain = re.sub(r"\x1b\[[0-9;]*m", "", terminal.written)
    assert max(len(line) for line in plain.splitlines()) <= columns
    assert re.search(r"\x1b\[1mB is better: \+0\.467", terminal.written)


def test_numbers_have_a_sign_where_they_are_differences() -> None:
    assert [signed(x) for x in (0.06, -0.06, 0.0, None)] == ["+0.060", "-0.060", "0.000", "–"]
    assert [p_text(p) for p in (None, 0.0009, 0.001, 1.0)] == ["–", "< 0.001", "0.001", "1.000"]


# --- Text from elsewhere ------------------------------------------------------------------------

HOSTILE = (
    "a | b",
    "\\| x",
    "`code` ```",
    "<img src=x onerror=alert(1)> <!-- </code></details>",
    "[link](https://e.com) ![image](x) <https://e.com>",
    "https://e.com www.e.com WWW.e.com",
    "@user someone@e.com",
    "#12 owner/repo#12 GH-12",
    "**bold** _it_ ~~gone~~ $x^2$ $$y$$",
    ":boom: &amp; &lt;b&gt; &#64;user",
    "a\nb\r\n# c\n\n| d | e |",
    "- list",
    "1. list",
    "---",
    "===",
    "    code",
    "> quote",
    "\x1b[2J\u202eright\u2028\x00",
)


class Page(HTMLParser):
    """The elements of a page, and its text."""

    def __init__(self, markdown: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(MarkdownIt("commonmark").enable("table").render(markdown))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert all(name == "style" and str(v).startswith("text-align") for name, v in attrs)
        self.tags.append(tag)

    def handle_comment(self, data: str) -> None:
        raise AssertionError(data)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.parametrize("value", HOSTILE)
@pytest.mark.parametrize("place", ["{}", "- {}", "# {}", "| a | b |\n|---|---|\n| {} | b |"])
def test_in_markdown_a_text_renders_as_itself(value: str, place: str) -> None:
    harmless = Page(place.format("harmless"))
    page = Page(place.format(text(value)))
    assert [tag for tag in page.tags if tag != "span"] == harmless.tags
    shown = printable(value).replace("\n", "\\n")
    assert "".join(page.texts).split() == "".join(harmless.texts).replace("harmless", shown).split()
    assert text(value) in code(value)
    # What GitHub looks for in a finished page is in no single piece of text.
    for piece in page.texts:
        assert not re.search(r"@\w|#\d|\$\S|https?:|www\.|:\w+:|GH-\d", piece, re.IGNORECASE)


def test_in_markdown_endless_texts_and_tables_are_cut() -> None:
    assert text("x" * 10_000) == "x" * (LONGEST - 1) + "…"
    lines = table(["a"], [["x"]] * (MOST_ROWS + 5))
    assert lines[-1] == "… and 5 more; `--json` has all."
    assert len(lines) == 2 + MOST_ROWS + 2


def make_hostile() -> None:
    ids = [f"{i} {value}" for i, value in enumerate(HOSTILE)]
    about = [{"key | `x` @user": value} for value in HOSTILE]
    for name, answers in (("a", [0.0, 1.0]), ("b", [1.0, 0.0])):
        make_run(name, answers * (len(ids) // 2), ids=ids, metadata=about)
        run = RunDir(Path("outputs/evals") / name)
        info = run.read_info()
        info.config["experiment_name"] = f"<b>@{name}</b> | \x1b[31m"
        info.config["endpoint"] = {"model": "[x](https://e.com)\n| @user |"}
        run.write_info(info)


def test_a_comparison_of_hostile_names_is_shown_and_never_obeyed(heldout: Heldout) -> None:
    make_hostile()
    arguments = ("compare", "a", "b", "--by", "key | `x` @user", "--flips", "30")
    said = heldout(*arguments)
    assert said.code == 0, said.err
    assert printable(said.out) == said.out
    outcome = heldout(*arguments, "--markdown")
    check_markdown(outcome, tables=3)
    ids = html.unescape(outcome.out)
    assert "0 a | b" in re.sub("</?span>", "", ids)


def check_markdown(outcome: Outcome, tables: int) -> None:
    assert outcome.code in (0, 1, 3), outcome.err
    page = Page(outcome.out)
    known = "h3 ul li p code span table thead tr th tbody td details summary"
    assert {*page.tags} <= {*known.split()}
    assert page.tags.count("table") == tables
    widths = {line.count("|") for line in outcome.out.splitlines() if line.startswith("| <code>")}
    assert len(widths) <= 2, widths
    for piece in page.texts:
        assert not re.search(r"@\w|https?:|<b>@", piece)


def test_markdown_has_the_verdict_as_its_heading_and_the_numbers_as_tables(
    runs: None, heldout: Heldout
) -> None:
    out = heldout("compare", "before", "after", "--by", "difficulty", "--markdown").out
    first = heldout("compare", "before", "after").out.splitlines()[-1]
    assert out.startswith(f"### {first}\n\n- A: <code>before</code>, answered by <code>make")
    assert "| :-- | --: | --: | --: | --: | --: | --: |" in out
    assert [
        line.split(" | ")[0]
        for line in out.splitlines()
        if line.startswith("| <code>") and " | 0." in line
    ] == [f"| <code>{name}</code>" for name in ("reward", "easy", "medium", "hard")]
    assert "<summary>Flips: gained 29, lost 1</summary>" in out
    assert "| lost | <code>q56</code> | 1.000 | 0.000 |" in out
    assert out.count("| gained |") == 10
