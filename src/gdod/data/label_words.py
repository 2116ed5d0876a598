"""Tell which of the two values of a label counts as 1, where the words themselves say so."""

import re
from collections.abc import Iterable
from itertools import permutations

# The second of each pair counts as 1.
_PAIRS = (
    ("0", "1"),
    ("-1", "1"),
    ("-", "+"),
    ("no", "yes"),
    ("n", "y"),
    ("false", "true"),
    ("f", "t"),
    ("off", "on"),
    ("negative", "positive"),
    ("neg", "pos"),
    ("absent", "present"),
    ("inactive", "active"),
    ("failure", "success"),
    ("survived", "died"),
    ("alive", "dead"),
    ("alive", "deceased"),
    ("living", "deceased"),
    ("healthy", "sick"),
    ("healthy", "diseased"),
    ("normal", "abnormal"),
    ("benign", "malignant"),
    ("ham", "spam"),
    ("legitimate", "fraud"),
    ("legitimate", "fraudulent"),
    ("genuine", "fraud"),
    ("retained", "churned"),
    ("stayed", "left"),
)
_NOT = re.compile(r"^(no|not|non|never)[ _-]+(?=\w)")


def positive_values(values: Iterable[str]) -> tuple[str, ...]:
    """Return what counts as 1 of two words, in all its spellings: "yes" and "Yes" of "yes", "Yes" and "no".

    Nothing if there are not two words, or neither they nor signs such as ">50K" beside "<=50K" tell.
    """
    spellings: dict[str, list[str]] = {}
    for value in values:
        spellings.setdefault(value.casefold(), []).append(value)
        if len(spellings) > 2:
            return ()
    if len(spellings) < 2:
        return ()
    for word, other in permutations(spellings):
        greater = word.startswith(">") and other.startswith("<")
        if (other, word) in _PAIRS or _NOT.sub("", other) == word or greater:
            return tuple(spellings[word])
    return ()
