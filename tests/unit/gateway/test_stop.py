"""Stop strings: chunked scanning equals a search of the whole text."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.stop import StopScanner

LETTERS = "a😀"  # few, so that most texts have a beginning of some stop string
texts = st.text(LETTERS, max_size=40)
stop_sets = st.lists(st.text(LETTERS, min_size=1, max_size=5), max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The first end of any stop string; of several that end there, the longest."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@example("aEND", ["END", "x"], [3, 1])
@example("aabab", ["abab"], [3, 2])
@settings(max_examples=200)
@given(texts, stop_sets, st.lists(st.integers(0, 6), max_size=20))
def test_random_pieces_equal_a_search_of_the_whole(text, stops, sizes) -> None:
    scanner, out, at = StopScanner(stops), "", 0
    for size in (*sizes, len(text)):
        if at >= len(text) or scanner.hit is not None:
            break
        out += scanner.push(text[at : at + size])
        at += size
    if scanner.hit is None:
        out += scanner.flush()
    assert (out, scanner.hit) == naive(text, stops)


@settings(max_examples=200)
@given(texts, stop_sets)
def test_no_more_is_held_back_than_may_become_a_stop_string(text, stops) -> None:
    scanner, out = StopScanner(stops), ""
    for index, letter in enumerate(text):
        out += scanner.push(letter)
        if scanner.hit is not None:
            return
        held = text[len(out) : index + 1]
        assert text[: index + 1] == out + held
        assert not held or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_over_three_pieces() -> None:
    scanner = StopScanner(["\n\nUser:"])
    assert scanner.push("Hi!\n") == "Hi!"
    assert scanner.push("\nUs") == ""
    assert scanner.push("er: more") == ""
    assert scanner.hit == "\n\nUser:"


def test_a_false_alarm_is_handed_out() -> None:
    scanner = StopScanner(["END"])
    assert [scanner.push(piece) for piece in ("EN", "EN", "x")] == ["", "EN", "ENx"]
