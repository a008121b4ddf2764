"""How a text is divided, which rows are evaluated, special tokens, and streams of random numbers."""

from itertools import pairwise

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lacuna.common.errors import InputError
from lacuna.objectives import SpecialTokens, random_stream
from lacuna.objectives.data import split_sources, spread, spread_by_weight


@examples(100)
@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=2, max_size=30),
    eval_fraction=st.floats(0.001, 0.9),
    seed=st.integers(0, 2**32),
)
def test_parts_are_disjoint_and_cover_all_documents(numbered, lengths, eval_fraction, seed) -> None:
    store = numbered(lengths)
    ((train, held_out),) = split_sources(store=store, eval_fraction=eval_fraction, seed=seed)
    assert len(train) and len(held_out)
    everything = [tuple(span) for span in (*train.tolist(), *held_out.tolist())]
    bounds = store.document_offsets.tolist()
    assert sorted(everything) == list(pairwise(bounds))
    assert train.tolist() == sorted(train.tolist()) and held_out.tolist() == sorted(held_out.tolist())
    # Enough is held out, and without one of its documents it would be too little.
    sizes = sorted(int(store.sentence_offsets[b] - store.sentence_offsets[a]) for a, b in held_out)
    if len(train) > 1:
        assert sum(sizes) >= eval_fraction * len(store.tokens) - 1e-6
        assert sum(sizes) - sizes[-1] <= eval_fraction * len(store.tokens) + 1e-6


def test_a_single_document_is_cut_between_sentences(numbered) -> None:
    store = numbered([[3] * 20])
    ((train, held_out),) = split_sources(store=store, eval_fraction=0.1, seed=0)
    assert train.tolist() == [[0, 18]] and held_out.tolist() == [[18, 20]]
    with pytest.raises(InputError, match="single sentence"):
        split_sources(store=numbered([[3]]), eval_fraction=0.1, seed=0)


@pytest.mark.parametrize("lengths", [[[3]], [[3, 4], [5]]])
def test_nothing_is_held_out_when_nothing_is_asked_for(numbered, lengths) -> None:
    ((train, held_out),) = split_sources(store=numbered(lengths), eval_fraction=0, seed=0)
    assert len(train) == len(lengths) and len(held_out) == 0


def test_evaluated_rows_are_spread_evenly() -> None:
    assert spread(5, 10).tolist() == [0, 1, 2, 3, 4]
    assert spread(100, 3).tolist() == [0, 49, 99]
    assert spread(0, 3).tolist() == []
    assert len(spread(10**7, 512)) == 512
    assert spread_by_weight([3, 1], [0.5, 0.5], 4).tolist() == [0, 1, 2, 3], "all of them, whatever the weights"
    by_source = spread_by_weight([100, 3, 3], [0.9, 0.05, 0.05], 10)  # 9 + 1 + 1 are one too many
    assert by_source.tolist() == [*spread(100, 8).tolist(), 100, 103]


# Special tokens


class _Tokenizer:
    all_special_ids = [0, 7]
    bos_token_id = None
    eos_token_id = 7

    def __len__(self) -> int:
        return 9


def test_special_tokens_of_a_tokenizer_without_cls_and_pad() -> None:
    tokens = SpecialTokens.of(_Tokenizer())
    assert (tokens.start, tokens.end, tokens.pad, tokens.mask, tokens.vocab_size) == (7, 7, 7, None, 9)
    assert tokens.ordinary.tolist() == [1, 2, 3, 4, 5, 6, 8]
    with pytest.raises(InputError, match="--objective clm"):
        tokens.required_mask()
    without_end = _Tokenizer()
    without_end.eos_token_id = None
    with pytest.raises(InputError, match="no token for the start or end of a document"):
        SpecialTokens.of(without_end)


def test_streams_of_random_numbers_never_meet() -> None:
    keys = [(seed, stream, index) for seed in (0, 1) for stream in ("mask", "pair") for index in (0, 1, 2**40)]
    draws = {tuple(random_stream(seed=s, stream=n, index=i).integers(2**63, size=2)) for s, n, i in keys}
    assert len(draws) == len(keys)
