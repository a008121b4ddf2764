"""How many examples a property is tried on, and which cases of a test are fast ones.

Each run sees the same ones: `make test` a quarter of the number that a test names, `make test-slow` all. To look for
others:

    LACUNA_EXAMPLES=20 .venv/bin/python -m pytest tests/modeling/test_properties.py    # 20 times as many, at random
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

_FACTOR = float(os.environ.get("LACUNA_EXAMPLES", "0.25"))


def examples(count: int) -> Callable[[Any], Any]:
    """Run a property on `count` examples times the factor; up to a factor of 1, always the same ones."""
    return settings(
        max_examples=max(5, round(count * _FACTOR)),
        derandomize=_FACTOR <= 1,
        database=None,
        deadline=None,  # The first example of a process pays for imports and warm-up.
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
        report_multiple_bugs=False,
        # Looking for the smallest failing example takes minutes: worth it where somebody waits for it.
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if _FACTOR > 1 else [])],
    )


def fast(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Cases of `pytest.mark.parametrize`, of which all but the chosen ones are slow tests."""
    return [case if case in chosen else pytest.param(case, marks=pytest.mark.slow) for case in cases]


def document_tokens(store: Any, document: int) -> Any:
    """Token ids of one document of a token store, a view of its file."""
    first, last = store.document_offsets[document : document + 2]
    return store.tokens[store.sentence_offsets[first] : store.sentence_offsets[last]]


def sentence_tokens(store: Any, sentence: int) -> Any:
    """Token ids of one sentence, counted over the whole store."""
    first, last = store.sentence_offsets[sentence : sentence + 2]
    return store.tokens[first:last]
