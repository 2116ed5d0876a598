"""What a rank raises when something went wrong on another."""

import pytest

from gdod import InputError
from gdod.errors import NonFiniteInputError
from gdod.ranks import Exchange, LostError
from gdod.ranks.exchange import Failure, raise_in_same_words, raise_own_or_first


@pytest.mark.parametrize(
    ("called", "words"),
    [
        ("gdod.backward", "^rank 1 of 2 lost the others in gdod.backward, while exchanging rows: .* torch says: gone"),
        ("", "^rank 1 of 2 lost the others: another rank has ended or hangs; torch says: gone$"),
    ],
)
def test_an_exchange_that_others_left_is_an_error_of_its_own(called: str, words: str) -> None:
    exchange = Exchange.__new__(Exchange)  # without a process group
    exchange.rank, exchange.ranks, exchange.called = 1, 2, called

    def collective() -> None:
        raise RuntimeError("gone\nat some address")

    with pytest.raises(LostError, match=words):
        exchange.run("rows", 0, collective)


WRONG, INFINITE, BROKEN, FULL = InputError("no"), NonFiniteInputError("inf"), KeyError("where"), OSError("no room")


@pytest.mark.parametrize(
    ("errors", "kind", "text"),
    [
        ({1: WRONG}, InputError, "rank 1: no"),
        ({0: WRONG, 2: INFINITE}, InputError, "rank 0: no; rank 2: inf"),
        ({0: INFINITE, 2: INFINITE}, NonFiniteInputError, "rank 0: inf; rank 2: inf"),
        ({1: BROKEN}, LostError, "gdod.backward failed on another rank: rank 1: KeyError: 'where'"),
        (
            {0: WRONG, 1: FULL},
            LostError,
            "gdod.backward failed on another rank: rank 0: no; rank 1: OSError: no room",
        ),
    ],
)
def test_all_ranks_raise_the_same(errors: dict[int, Exception], kind: type[Exception], text: str) -> None:
    failures = [Failure.of(error, rank) for rank, error in errors.items()]
    with pytest.raises(kind) as caught:
        raise_in_same_words(failures, None)
    assert type(caught.value) is kind
    assert str(caught.value) == text


def test_a_rank_that_broke_raises_its_own_error() -> None:
    for fail in (raise_in_same_words, raise_own_or_first):
        with pytest.raises(KeyError) as caught:
            fail([Failure.of(BROKEN, 1)], BROKEN)
        assert caught.value is BROKEN


@pytest.mark.parametrize(
    ("error", "rank", "kind", "text"),
    [
        (WRONG, 0, InputError, "no"),
        (WRONG, 1, InputError, "rank 1: no"),
        (FULL, 1, OSError, "rank 1: no room"),
        (BROKEN, 1, LostError, "rank 1 failed: KeyError: 'where'"),
    ],
)
def test_another_rank_s_error_says_whose_it_is(error: Exception, rank: int, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        raise_own_or_first([Failure.of(error, rank)], None)
    assert str(caught.value) == text
