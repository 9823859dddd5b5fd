"""`heldout sql`, and `--where` of other commands, from the command line."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.cli.conftest import RUN, Heldout, Write
from tests.cli.runs import Outcome


@pytest.fixture
def six(finished: Outcome) -> None:
    """A run of six samples, and a copy of it to compare it with."""
    shutil.copytree(RUN, RUN.parent.with_name("other"))


def test_a_query_prints_a_table_or_json(six: None, heldout: Heldout) -> None:
    sql = "select metadata.topic, count(*) as n, avg(reward) from results group by all order by 1"
    printed = heldout("sql", "six", sql)
    assert printed.code == 0
    assert "topic" in printed.out
    rows = [json.loads(line) for line in heldout("sql", "six", sql, "--json").out.splitlines()]
    assert sum(row["n"] for row in rows) == 6
    assert [*rows[0]] == ["topic", "n", "avg(reward)"]


def test_a_mean_that_leaves_out_errored_items_says_so_on_standard_error(
    write: Write, heldout: Heldout
) -> None:
    write(**{"    return word\n": "    assert word != 'word5'\n    return word\n"})
    heldout("run", "eval.py")
    sql = "select avg(reward) as mean, count(*) as n from results"
    printed = heldout("sql", "six", sql, "--json")
    assert json.loads(printed.out) == {"mean": 0.8, "n": 6}
    assert printed.err == (
        "Note: 1 of 6 items errored and have no reward: avg(reward) is over the 5 others, "
        "avg(reward_or_0) over all 6.\n"
    )
    assert heldout("sql", "six", sql.replace("reward", "reward_or_0")).err == ""


def test_values_that_json_lacks_are_texts_in_it(six: None, heldout: Heldout) -> None:
    sql = "select date '2026-01-02' as d, [1.5, null] as l, {'a': 1} as s, 0.1 as x"
    (line,) = heldout("sql", "six", sql, "--json").out.splitlines()
    assert json.loads(line) == {"d": "2026-01-02", "l": [1.5, None], "s": {"a": 1}, "x": 0.1}


def test_bad_sql_is_one_line_and_exit_code_2(six: None, heldout: Heldout) -> None:
    for command in (
        ["sql", "six", "select foo from results"],
        ["show", "six", "--where", "foo = 1"],
        ["show", "six", "--by", "topic", "--where", "foo = 1"],
        ["compare", "six", "six", "--where", "foo = 1"],
    ):
        outcome = heldout(*command)
        assert outcome.code == 2
        where = "the condition 'foo = 1': " if "--where" in command else ""
        assert outcome.err.startswith(
            f'Error: {where}Binder Error: Referenced column "foo" not found'
        )
        assert outcome.err.count("\n") == 1


def test_a_table_stops_after_some_rows_and_says_so(six: None, heldout: Heldout) -> None:
    many = "select i from range(1000) t(i)"
    printed = heldout("sql", "six", many).out
    assert "The first 200 rows" in printed
    assert len(heldout("sql", "six", many, "--json").out.splitlines()) == 1000


def test_a_subset_is_said_to_be_one_beside_its_mean(six: None, heldout: Heldout) -> None:
    condition = "sample_id <> 'q0'"
    for command in (["show", "six"], ["show", "six", "--by", "topic"], ["compare", "six", "other"]):
        printed = heldout(*command, "--where", condition).out
        assert f"only results where {condition}: 5 of 6" in " ".join(printed.split())
    summary = json.loads(heldout("show", "six", "--where", condition, "--json").out)["summary"]
    assert (summary["where"], summary["n"], summary["n_of"]) == (condition, 5, 6)
    compared = json.loads(heldout("compare", "six", "other", "--where", condition, "--json").out)
    assert (compared["where"], compared["n_of"]) == (condition, [6, 6])
    line = heldout("show", "six", "--by", "topic", "--where", condition, "--json").out
    assert json.loads(line.splitlines()[0])["where"] == condition


def test_rows_picked_by_outcome_have_no_interval_and_are_not_compared(
    six: None, heldout: Heldout
) -> None:
    printed = heldout("show", "six", "--where", "reward >= 0")
    assert "picked by what came out, so that their means have no intervals" in " ".join(
        printed.out.split()
    )
    shown = json.loads(heldout("show", "six", "--where", "reward >= 0", "--json").out)
    assert shown["summary"]["ci_low"] is None
    assert shown["summary"]["mean"] is not None
    for command in (
        ["compare", "six", "other"],
        ["show", "six", "--cluster", "topic"],
        ["show", "six", "--by", "topic", "--cluster", "topic"],
    ):
        refused = heldout(*command, "--where", "reward >= 0")
        assert refused.code == 2
        assert "picked by what came out (reward >= 0)" in refused.err
