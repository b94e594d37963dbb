"""AttentionMask: each condition against a matrix written by hand, and what the backends ask of it."""

import pytest
import torch
from cases import Case, cases
from hypothesis import given

from triptych.attention import EVERYTHING, AttentionMask

CPU = torch.device("cpu")


def matrix(text: str) -> list[list[bool]]:
    """Rows are queries, columns are keys; x is visible."""
    return [[cell == "x" for cell in row] for row in text.split()]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (AttentionMask(), "xxxx xxxx xxxx"),
        (AttentionMask(causal=True), "x... xx.. xxx."),
        (AttentionMask(window=1), "x... .x.. ..x."),
        (AttentionMask(window=2), "xx.. xxx. .xxx"),
        (AttentionMask(causal=True, window=2), "x... xx.. .xx."),
        # Queries stand at 1, 2, 3: a decoding step of three tokens after one that is in the cache.
        (AttentionMask(causal=True, query_offset=1), "xx.. xxx. xxxx"),
        (AttentionMask(causal=True, window=2, query_offset=1), "xx.. .xx. ..xx"),
        (AttentionMask(window=2, query_offset=4), "...x .... ...."),
        (AttentionMask(query_offset=4), "xxxx xxxx xxxx"),
        (AttentionMask(key_padding=torch.tensor([[True, True, False, True]])), "xx.x xx.x xx.x"),
        (AttentionMask(causal=True, key_padding=torch.tensor([[False, True, True, True]])), ".... .x.. .xx."),
    ],
    ids=lambda value: value.describe() if isinstance(value, AttentionMask) else "",
)
def test_matrices(mask: AttentionMask, expected: str) -> None:
    assert mask.visible(3, 4, CPU)[0, 0].tolist() == matrix(expected)


def test_padding_belongs_to_its_example() -> None:
    visible = AttentionMask(key_padding=torch.tensor([[True, False], [True, True]])).visible(1, 2, CPU)
    assert visible.shape == (2, 1, 1, 2)
    assert visible[:, 0, 0].tolist() == [[True, False], [True, True]]


def test_words_for_captions() -> None:
    padding = torch.ones(1, 2, dtype=torch.bool)
    assert EVERYTHING.describe() == "none"
    assert AttentionMask(query_offset=3).describe() == "none"
    whole = AttentionMask(causal=True, window=16, key_padding=padding)
    assert whole.describe() == "causal, window 16, key padding"


@given(cases())
def test_the_written_out_matrix_is_the_definition(case: Case) -> None:
    visible = case.mask().visible(case.queries, case.keys, CPU).expand(case.batch, 1, -1, -1)
    expected = [
        [[case.sees(b, i, j) for j in range(case.keys)] for i in range(case.queries)] for b in range(case.batch)
    ]
    assert visible[:, 0].tolist() == expected


@given(cases())
def test_hides_by_position_says_whether_a_matrix_is_needed(case: Case) -> None:
    by_position = AttentionMask(causal=case.causal, window=case.window, query_offset=case.offset)
    hidden = not by_position.visible(case.queries, case.keys, CPU).all()
    assert case.mask().hides_by_position(case.queries, case.keys) == hidden


@given(cases())
def test_silence_zeroes_what_no_query_sees_and_nothing_else(case: Case) -> None:
    key = torch.ones(case.batch, case.kv_heads, case.keys, case.head_size)
    silenced = case.mask().zero_hidden(key, 2 * key, case.queries)
    seen = (~case.never_seen()).float()
    for one, full in zip(silenced, (1.0, 2.0), strict=True):
        assert torch.equal(one, (full * seen).expand_as(key))


def test_written_out_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    original = AttentionMask._write_out
    monkeypatch.setattr(AttentionMask, "_write_out", lambda self, *a: (written.append(self), original(self, *a))[1])
    mask = AttentionMask(causal=True, window=3)
    first = mask.visible(5, 5, CPU)
    assert mask.visible(5, 5, CPU) is first
    assert len(written) == 1
    EVERYTHING.visible(5, 5, CPU)
    EVERYTHING.zero_hidden(torch.ones(1, 1, 5, 2), torch.ones(1, 1, 5, 2), 5)
    assert not EVERYTHING._lowered, "it outlives every forward pass, so it must not collect tensors"


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"window": 0}, "at least 1"),
        ({"query_offset": -1}, "0 or more"),
        ({"key_padding": torch.ones(2, 3)}, r"boolean B S tensor .* not torch.float32"),
        ({"key_padding": torch.ones(3, dtype=torch.bool)}, "1 dimensions"),
    ],
)
def test_refusals(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        AttentionMask(**options)
