from __future__ import annotations

from heldout.scoring.judges.prompts import PROMPTS

# A text that is changed is another prompt: raise its version, and add the new digest here. Those
# of versions that are gone may go, too.
PINNED = {
    "equality/1": "67e08a35beae4de8",
    "three_way/1": "cc049f8cbaefd496",
    "criteria/1": "20c2d414c4d51437",
    "pairwise/1": "62a627752ba6cd84",
    "equality_trajectory/1": "15e0b03e72664970",
    "three_way_trajectory/1": "79653cafd3f98088",
    "criteria_trajectory/1": "0c187a525372b899",
    "criteria_turn/1": "dd31a55fb537946b",
}


def test_no_prompt_is_changed_without_a_new_version() -> None:
    assert {name: prompt.digest for name, prompt in PROMPTS.items()} == PINNED


def test_every_prompt_asks_for_one_json_object_in_its_first_and_last_words() -> None:
    for prompt in PROMPTS.values():
        assert "one JSON object and nothing else" in prompt.system
        assert prompt.closing.endswith("Reply with the JSON object.")
