"""Where a turn ends, token by token, for tokenizers of all kinds."""

from __future__ import annotations

import random

import pytest

from heldout._live.decoding.turn import FIRST_FULL_SEARCH, Generation, Prompt, Turn
from tests._live.decoding.models import Spelling


def play(
    pieces: list[str], ids: list[int], stops: tuple[str, ...], tokenizer: Spelling | None = None
) -> Generation:
    turn = Turn(0, Prompt((0,), len(ids), stops), tokenizer or Spelling(pieces), frozenset({0}))
    for token in ids:
        if (generation := turn.add(token)) is not None:
            return generation
    raise AssertionError("it never ended")


PIECES = ["<end>", "a", "ab", "\n", "Qu", "estion", ":", "<x>", "b: c"]


def test_an_end_token_ends_it_and_is_part_of_it() -> None:
    assert play(PIECES, [1, 2, 0, 1], ()) == Generation((1, 2, 0), "stop", "aab")


def test_the_limit_ends_it() -> None:
    assert play(PIECES, [1, 2, 3], ()) == Generation((1, 2, 3), "length", "aab\n")


def test_a_stop_inside_a_token_ends_it_there_and_is_in_the_text() -> None:
    assert play(PIECES, [1, 8, 1], (":",)) == Generation((1, 8), "stop", "ab: c")


def test_a_stop_over_several_tokens_ends_it_with_the_last_of_them() -> None:
    found = play(PIECES, [1, 3, 4, 5, 6, 1, 1], ("never", "\nQuestion:"))
    assert found == Generation((1, 3, 4, 5, 6), "stop", "a\nQuestion:")


def test_a_stop_that_special_tokens_stand_between_is_found_at_the_token_that_completes_it() -> None:
    ids = [1, 3, *[7] * 25, 4, 5, 6, *[1] * 40]
    assert play(PIECES, ids, ("\nQuestion:",)).ids == tuple(ids[:30])


@pytest.mark.parametrize("more", [0, 3, FIRST_FULL_SEARCH, 200])
def test_a_stop_that_only_the_whole_text_shows_is_found_all_the_same(more: int) -> None:
    class Shouting(Spelling):
        """After a loud token everything is in capitals: a piece of a text reads otherwise."""

        def decode(self, ids: object, skip_special_tokens: bool = False) -> str:
            before, loud, after = super().decode(ids, True).partition("!")
            return before + loud + after.upper()

    ids = [2, *[1] * 20, 3, *[1] * more]
    taken: list[int] = []

    class Counted(Turn):
        def add(self, token: int) -> Generation | None:
            taken.append(token)
            return super().add(token)

    turn = Counted(
        0, Prompt((0,), len(ids), ("AB",)), Shouting(["<e>", "a", "!", "b"]), frozenset()
    )
    found = next(generation for token in ids if (generation := turn.add(token)) is not None)
    assert found == Generation(tuple(ids[:22]), "stop", "!" + "A" * 20 + "B")
    assert len(taken) <= FIRST_FULL_SEARCH  # noticed with the next look, not at the end


def test_every_turn_is_that_of_looking_at_the_whole_at_every_token() -> None:
    numbers = random.Random(1)
    for _ in range(300):
        ids = [numbers.randrange(1, len(PIECES)) for _ in range(numbers.randrange(1, 90))]
        stops = tuple(numbers.sample(["ab\n", "Question", "aaa", "::", "\n\nab", "c"], 2))
        spelled = [Spelling(PIECES).decode(ids[: n + 1], True) for n in range(len(ids))]
        first = next((n for n, t in enumerate(spelled) if any(s in t for s in stops)), None)
        end = len(ids) - 1 if first is None else first
        finish = "length" if first is None else "stop"
        assert play(PIECES, ids, stops) == Generation(tuple(ids[: end + 1]), finish, spelled[end])


def test_looking_for_stops_costs_the_same_at_every_token() -> None:
    def spent(length: int) -> int:
        tokenizer = Spelling(PIECES)
        play(PIECES, [1] * length, ("Question",), tokenizer)
        return tokenizer.decoded

    assert spent(2000) < 2.5 * spent(1000)
