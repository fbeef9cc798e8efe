"""What is known of a generation that a stop string ended."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from common.sampling_params import SamplingParams
from gateway.request import Committed, Order, Resume, TokenSource
from gateway.tally import Tally

A, R, B = TokenSource.ACCEPTED, TokenSource.RECOVERED, TokenSource.BONUS
ORDER = Order(
    request_id="r",
    prompt_ids=[1],
    max_tokens=9,
    sampling=SamplingParams(),
    method="draft",
    draft_tokens=0,
    acceptance="coupled",
    stop_token_ids=(),
    ignore_eos=False,
    drafters=(),
)
ALL = 1000
"""More tokens than any text here has."""
ROUNDS = st.lists(st.tuples(st.integers(0, 4), st.sampled_from([R, B])), min_size=1, max_size=5)


@given(st.lists(ROUNDS, max_size=5))
def test_accepted_tokens_are_counted_by_position_and_the_rest_is_told(messages) -> None:
    tally, rounds = Tally(), 0
    for message in messages:
        sources = [each for accepted, last in message for each in [A] * accepted + [last]]
        rounds += len(message)
        tally.add(Committed([0] * len(sources), sources, rounds, 4 * rounds, 7))
    stats = tally.speculation(ORDER, ALL)
    lengths = [accepted for message in messages for accepted, _ in message]
    expected = [sum(length > i for length in lengths) for i in range(4)]
    assert stats.accepted_per_position == tuple(count for count in expected if count)
    assert stats.accepted_tokens == sum(lengths) <= stats.drafted_tokens
    assert (stats.rounds, stats.drafted_tokens) == (rounds, 4 * rounds)
    assert tally.cached_tokens == (7 if messages else 0)
    assert (stats.method, stats.acceptance) == ("draft", "coupled")


@given(st.lists(ROUNDS, min_size=1, max_size=5), st.data())
def test_what_comes_after_a_stop_string_does_not_count(messages, data) -> None:
    """As if the text had ended there: rounds to the last token, all of it right or not."""
    tally, rounds, every = Tally(), 0, []
    for message in messages:
        sources = [each for accepted, last in message for each in [A] * accepted + [last]]
        rounds += len(message)
        every += sources
        tally.add(Committed([0] * len(sources), sources, rounds, 4 * rounds, 0, "ngram"))
    tokens = data.draw(st.integers(1, len(every)))
    kept = every[:tokens]
    stats = tally.speculation(ORDER, tokens)
    assert stats.rounds == sum(source != A for source in kept) + (kept[-1] == A)
    assert stats.accepted_tokens == kept.count(A) == stats.accepted_by_method.get("ngram", 0)
    assert stats.drafted_tokens == 4 * stats.rounds, "each round drafted as many"
    assert tally.speculation(ORDER, len(every)) == tally.speculation(ORDER, ALL)
    assert (tally.rounds, tally.drafted_tokens) == (rounds, 4 * rounds), "as they were told"


def told(method: str, accepted: int) -> Committed:
    return Committed([0] * (accepted + 1), [A] * accepted + [R], 1, accepted, 0, method)


def test_the_method_is_the_one_that_ran_last_and_each_gets_what_it_drafted() -> None:
    order = replace(ORDER, method="auto")
    tally = Tally()
    assert tally.speculation(order, ALL).method == "auto", "nobody has said yet"
    tally.add(told("medusa", 2))
    assert tally.speculation(order, ALL).method == "medusa"
    tally.move()
    for accepted in (1, 3):
        tally.add(told("draft", accepted))
    tally.move()
    tally.add(told("draft+ngram", 4))
    stats = tally.speculation(order, ALL)
    assert stats.method == "draft+ngram"
    assert stats.accepted_by_method == {"medusa": 2, "draft": 4}
    assert stats.accepted_tokens == 10


def test_what_another_gateway_began_may_have_filled_the_cache_itself() -> None:
    tally = Tally()
    tally.resume(Resume(ids=[5], sources=[R], rounds=1, drafted_tokens=0, numerics="n"))
    tally.add(Committed([6], [R], 1, 0, 7))
    assert (tally.cached_tokens, tally.rounds) == (0, 2)


def test_a_method_that_drafted_nothing_right_is_left_out() -> None:
    tally = Tally()
    tally.add(told("plain", 0))
    assert tally.speculation(ORDER, ALL).accepted_by_method == {}
