"""Alignments: the worked numbers of the papers, rows and subwords, and the table against a count made pair by pair."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triptych.errors import UserError
from triptych.explain.alignment.alignment import (
    AlignmentCounts,
    AlignmentTable,
    Choice,
    Links,
    fuse,
    hard,
    masking_links,
    merge_words,
    read_links,
    rows_for,
    soft,
)
from triptych.explain.evaluation.measures import measures

OCH_NEY = read_links("0-0 1-1 2?1")
THREE_ROWS = torch.tensor([[[0.1, 0.9], [0.8, 0.2], [0.3, 0.7]]])  # one head; the rows of start, y_0 and y_1

link_sets = st.frozensets(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8)


def random_weights(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1)


def split_into_words(length: int, generator: torch.Generator) -> list[int]:
    """Tokens of random words, from 0 without a gap."""
    new = torch.randint(0, 2, (max(length - 1, 0),), generator=generator)
    return [0, *new.cumsum(0).tolist()] if length else []


# Links and their error rate


def test_links_are_read_and_a_sure_one_is_possible_too() -> None:
    assert read_links("0-0 1?2  10-3\n") == Links(frozenset({(0, 0), (10, 3)}), frozenset({(0, 0), (1, 2), (10, 3)}))
    assert read_links("") == Links(frozenset(), frozenset())
    assert read_links("1?1 1-1").sure == {(1, 1)}
    assert Links(frozenset({(0, 0)}), frozenset()).possible == {(0, 0)}


@pytest.mark.parametrize("part", ["1", "1-", "-1", "1-2-3", "a-b", "1–2", "1.0-2", "-1-2", "1-²", "0-0,1-1"])
def test_what_is_no_link_is_named(part: str) -> None:
    with pytest.raises(UserError, match="alignment") as raised:
        read_links(f"0-0 {part}")
    assert f'"{part}"' in str(raised.value)


def test_the_error_rate_of_the_worked_example() -> None:
    counts = AlignmentCounts.of({(0, 0), (2, 1), (2, 2)}, OCH_NEY)
    assert counts == AlignmentCounts(predicted=3, sure=2, hit_sure=1, hit_possible=2)
    assert counts.aer == pytest.approx(0.4)
    assert counts.precision == pytest.approx(2 / 3)
    assert counts.recall == pytest.approx(0.5)


def test_counts_are_pooled_and_not_averaged() -> None:
    """A pair of one right link beside the worked example: 1 - (1 + 2 + 1 + 1) / (3 + 2 + 1 + 1)."""
    pooled = AlignmentCounts.of({(0, 0), (2, 1), (2, 2)}, OCH_NEY) + AlignmentCounts.of({(0, 0)}, read_links("0-0"))
    assert pooled.aer == pytest.approx(2 / 7)
    assert pooled.precision == pytest.approx(3 / 4)
    assert pooled.recall == pytest.approx(2 / 3)


def test_figures_that_divide_by_nothing_are_no_numbers() -> None:
    empty = AlignmentCounts()
    assert all(math.isnan(figure) for figure in (empty.aer, empty.precision, empty.recall))
    only_predicted = AlignmentCounts.of({(0, 0)}, read_links(""))
    assert (only_predicted.aer, only_predicted.precision) == (1.0, 0.0)
    assert math.isnan(only_predicted.recall)


@given(link_sets, link_sets, link_sets)
def test_the_error_rate_is_0_exactly_between_sure_and_possible(sure: Any, more: Any, predicted: Any) -> None:
    gold = Links(sure, more)
    counts = AlignmentCounts.of(predicted, gold)
    if predicted or sure:
        assert 0 <= counts.aer <= 1
        assert (counts.aer == 0) == (gold.sure <= predicted <= gold.possible)
    if sure:
        perfect = AlignmentCounts.of(sure, gold)
        assert (perfect.aer, perfect.precision, perfect.recall) == (0, 1, 1)


# From attention to links


def test_which_row_is_read() -> None:
    assert hard(THREE_ROWS, [0, 1], [0, 1], row="output", fusion="mean") == {(1, 0), (0, 1)}
    assert hard(THREE_ROWS, [0, 1], [0, 1], row="shifted", fusion="mean") == {(0, 0), (1, 1)}
    assert torch.equal(rows_for(THREE_ROWS, "output"), THREE_ROWS[:, :2])
    assert torch.equal(rows_for(THREE_ROWS, "shifted"), THREE_ROWS[:, 1:])


def test_heads_are_fused_by_mean_by_max_or_not() -> None:
    heads = torch.tensor([[[0.9, 0.1]], [[0.2, 0.8]]])
    assert torch.allclose(fuse(heads, "mean"), torch.tensor([[0.55, 0.45]]))
    assert torch.allclose(fuse(heads, "max"), torch.tensor([[0.9, 0.8]]))
    assert torch.equal(fuse(heads, 1), heads[1])
    for wrong in (2, -1):
        with pytest.raises(UserError, match="0 to 1"):
            fuse(heads, wrong)


def test_the_end_of_the_source_and_padding_take_no_part() -> None:
    """The end token (position 2) is the sink that attention likes; padding behind it must not count either."""
    weights = torch.tensor([[[0.1, 0.2, 0.7, 0.0], [0.3, 0.1, 0.5, 0.1], [0.0, 0.0, 0.0, 1.0]]])
    for source_words in ([0, 1], [0, 1, -1], [0, 1, -1, -1]):
        for target_words in ([0], [0, -1]):
            assert hard(weights, source_words, target_words, row="output", fusion=0) == {(1, 0)}
            assert hard(weights, source_words, target_words, row="shifted", fusion=0) == {(0, 0)}
            found = soft(weights, source_words, target_words, row="output", fusion=0)
            assert torch.equal(found, torch.tensor([[0.1, 0.2]]))


def test_links_of_tokens_become_links_of_words() -> None:
    """Each token has its own argmax: the target word of two tokens has two links, two equal links are one."""
    weights = torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.2, 0.7], [0.1, 0.6, 0.3], [1.0, 0.0, 0.0]]])
    assert hard(weights, [0, 0, 1], [0, 0, 1], row="output", fusion=0) == {(0, 0), (1, 0), (0, 1)}
    assert hard(weights, [0, 0, 0], [0, 0, 0], row="output", fusion=0) == {(0, 0)}


def test_a_token_without_weight_on_any_word_has_no_link() -> None:
    weights = torch.tensor([[[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]])
    assert hard(weights, [0, 1], [0, 1], row="output", fusion=0) == {(1, 1)}
    assert hard(weights, [], [0, 1], row="output", fusion=0) == set()
    assert hard(weights, [0, 1], [], row="output", fusion=0) == set()
    assert hard(weights[:, :1], [0, 1], [], row="shifted", fusion="max") == set()


def test_of_equal_weights_the_first_wins() -> None:
    assert hard(torch.full((1, 2, 3), 1 / 3), [0, 1, 2], [0], row="output", fusion=0) == {(0, 0)}


def test_words_are_sums_over_source_tokens_and_means_over_target_tokens() -> None:
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, 0.1, 0.1, 0.3], [0.0, 1.0, 0.0, 0.0]])
    merged = merge_words(weights, [0, 0, 1, -1], [0, 0, 1])
    assert torch.allclose(merged, torch.tensor([[0.45, 0.2], [1.0, 0.0]]))
    assert merge_words(weights, [], []).shape == (0, 0)
    gap = merge_words(weights, [0, 2, 2], [1])  # words 1 of the source and 0 of the target have no token
    assert torch.allclose(gap, torch.tensor([[0.0, 0.0, 0.0], [0.1, 0.0, 0.5]]))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 1000))
def test_merging_keeps_the_sum_of_rows(T: int, S: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    merged = merge_words(
        random_weights(2, T, S, seed=seed), split_into_words(S, generator), split_into_words(T, generator)
    )
    assert torch.allclose(merged.sum(-1), torch.ones(merged.shape[:-1], dtype=torch.float64))
    plain = random_weights(T, S, seed=seed)
    assert torch.allclose(merge_words(plain, list(range(S)), list(range(T))), plain)


def test_more_tokens_than_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="3 tokens does not fit weights for 2"):
        hard(THREE_ROWS, [0, 1, 2], [0], row="output", fusion=0)
    with pytest.raises(ValueError, match="3 tokens does not fit weights for 2"):  # the third row is the end token's
        hard(THREE_ROWS, [0, 1], [0, 1, 2], row="output", fusion=0)


# Measures


def test_the_measures_of_the_worked_examples() -> None:
    found = measures(torch.tensor([[0.9, 0.1]]))
    assert found.entropy.item() == pytest.approx(0.3251, abs=5e-5)
    assert found.relative_entropy.item() == pytest.approx(0.4690, abs=5e-5)
    found = measures(torch.tensor([[0.8, 0.2], [0.6, 0.4]]))
    assert found.diagonality.item() == pytest.approx(0.6)
    assert found.monotonicity.item() == 1.0
    assert found.coverage.item() == pytest.approx(-0.5108, abs=5e-5)


def test_measures_at_their_ends() -> None:
    sharp = measures(torch.eye(4))
    assert [round(figure.item(), 6) for figure in sharp] == [0, 0, 1, 1, 0]
    backwards = measures(torch.eye(4).flip(0))
    assert backwards.monotonicity.item() == 0
    assert backwards.diagonality.item() == pytest.approx(1 - (1 + 1 / 3 + 1 / 3 + 1) / 4)
    even = measures(torch.full((3, 5), 0.2))
    assert even.entropy.item() == pytest.approx(math.log(5))
    assert even.relative_entropy.item() == pytest.approx(1)
    assert even.monotonicity.item() == 1  # standing still is no step back, whatever the rounding
    first = measures(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    assert first.coverage.item() == pytest.approx(math.log(1e-9))  # finite: one word that got nothing


def test_one_word_on_a_side() -> None:
    one_source = measures(torch.ones(3, 1))
    assert (one_source.entropy.item(), one_source.monotonicity.item(), one_source.coverage.item()) == (0, 1, 0)
    assert one_source.relative_entropy.isnan()
    assert one_source.diagonality.isnan()
    one_target = measures(torch.tensor([[0.5, 0.5]]))
    assert one_target.coverage.item() == pytest.approx(2 * math.log(0.5))
    assert one_target.diagonality.isnan()
    assert one_target.monotonicity.isnan()
    for nothing in (torch.zeros(2, 2), torch.zeros(0, 2), torch.zeros(2, 0)):
        assert all(figure.isnan() for figure in measures(nothing))


def test_what_lies_on_special_tokens_is_left_out() -> None:
    """Rows that sum to less than 1 are brought to 1, a row without weight takes no part."""
    whole = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    less = measures(whole * torch.tensor([[0.5], [0.01]]))
    for figure, wanted in zip(less, measures(whole), strict=True):
        assert figure.item() == pytest.approx(wanted.item(), abs=1e-6)
    gap = measures(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    assert (gap.entropy.item(), gap.diagonality.item()) == (0, 1)
    assert gap.monotonicity.isnan()  # no two neighbours that both say something


@given(st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
def test_measures_stay_in_their_range_and_ignore_padding(T: int, S: int, seed: int) -> None:
    weights = random_weights(T, S, seed=seed)
    found = measures(weights)
    assert -1e-12 <= found.entropy.item() <= math.log(S) + 1e-9
    assert found.coverage.item() <= 0
    for figure in (found.relative_entropy, found.diagonality, found.monotonicity):
        assert figure.isnan() or -1e-9 <= figure.item() <= 1 + 1e-9
    padded = torch.nn.functional.pad(weights, (0, 2, 0, 3)).expand(4, -1, -1)
    for figure, wanted in zip(measures(padded, torch.tensor(S), torch.tensor(T)), found, strict=True):
        assert torch.allclose(figure, wanted.expand(4), equal_nan=True)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -0.1])
def test_weights_that_no_softmax_gives_are_refused(wrong: float) -> None:
    weights = torch.tensor([[[0.5, wrong], [0.5, 0.5]]])
    with pytest.raises(ValueError, match="finite and not negative"):
        measures(weights)
    with pytest.raises(ValueError, match="finite and not negative"):
        hard(weights, [0, 1], [0], row="output", fusion=0)
    with pytest.raises(ValueError, match="finite and not negative"):
        AlignmentTable().add({0: weights[None]}, [[0, 1]], [[0]])


# The table


def pairs(count: int, heads: int, layers: int, seed: int) -> tuple[dict[int, Tensor], list, list, list]:
    """A padded batch: weights per layer (B H R S), words of both sides, links of every second pair but one."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count, 2), generator=generator).tolist()
    R, S = max(t for _, t in lengths) + 2, max(s for s, _ in lengths) + 2
    sources = [split_into_words(s, generator) for s, _ in lengths]
    targets = [split_into_words(t, generator) for _, t in lengths]
    weights = {layer: random_weights(count, heads, R, S, seed=seed + layer) for layer in range(layers)}
    for each in weights.values():  # as a model's key padding does
        for pair, (s, _) in enumerate(lengths):
            each[pair, :, :, s + 1 :] = 0
    links: list[Links | None] = []
    for source, target in zip(sources, targets, strict=True):
        every = [(i, j) for i in range(source[-1] + 1) for j in range(target[-1] + 1)]
        taken = torch.rand(len(every), generator=generator).tolist()
        sure = frozenset(link for link, share in zip(every, taken, strict=True) if share < 0.3)
        links.append(Links(sure, frozenset(link for link, share in zip(every, taken, strict=True) if share < 0.5)))
    links[0] = None
    return weights, sources, targets, links


@pytest.mark.parametrize("chunk", [1, 4_000_000])
def test_the_table_counts_what_pair_by_pair_counting_finds(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triptych.explain.alignment.alignment._CHUNK", chunk)
    table = AlignmentTable()
    batches = [pairs(7, 3, 2, seed) for seed in (0, 100)]
    for batch in batches:
        table.add(*batch)
    rows = table.rows()
    assert len(rows) == 2 * 2 * (3 + 2)
    assert len({row.choice for row in rows}) == len(rows)
    for row in rows:
        counts = AlignmentCounts()
        figures: dict[str, list[float]] = {}
        for weights, sources, targets, links in batches:
            for b, gold in enumerate(links):
                how: Any = {"row": row.choice.row, "fusion": row.choice.fusion}
                each = weights[row.choice.layer][b]
                if gold is not None:
                    counts += AlignmentCounts.of(hard(each, sources[b], targets[b], **how), gold)
                said = measures(soft(each, sources[b], targets[b], **how))._asdict()
                for name, figure in said.items():
                    figures.setdefault(name, []).extend([] if figure.isnan() else [figure.item()])
        assert row.counts == counts
        assert row.measures == pytest.approx({name: sum(said) / len(said) for name, said in figures.items()})
        assert row.figures["aer"] == counts.aer
        assert table[row.choice] == row
    best = table.best()
    assert best is not None
    assert best.counts.aer == min(row.counts.aer for row in rows)


def test_the_table_finds_the_layer_row_and_head_that_align() -> None:
    """Head 1 of layer 1 points, from the row that reads a word, at its source word; everything else is noise."""
    table = AlignmentTable()
    for seed in range(5):
        weights = {layer: random_weights(8, 3, 6, 5, seed=10 * seed + layer) for layer in range(3)}
        order = torch.stack([torch.randperm(5, generator=torch.Generator().manual_seed(seed + b)) for b in range(8)])
        weights[1][:, 1, 1:] = 0.9 * torch.nn.functional.one_hot(order, 5) + 0.02
        words = [list(range(5))] * 8
        gold = [frozenset((i, j) for j, i in enumerate(each)) for each in order.tolist()]
        table.add(weights, words, words, [Links(each, each) for each in gold])
    best = table.best()
    assert best is not None
    assert best.choice == Choice(1, "shifted", 1)
    assert str(best.choice) == "layer 1, shifted row, head 1"
    assert (best.counts.aer, best.counts.precision, best.counts.recall) == (0, 1, 1)


def test_of_equally_good_choices_the_simplest_is_taken() -> None:
    """Everything equal: the mean before the max before a head, the output row before the shifted, the first layer."""
    same = torch.eye(3)[None, None, [0, 1, 1, 2]].expand(1, 2, 4, 3)  # one wrong link in each of the two rows
    table = AlignmentTable()
    table.add({0: same, 1: same}, [[0, 1, 2]], [[0, 1, 2]], [read_links("0-0 1?1 2-2")])
    assert {row.counts.aer for row in table.rows()} == {1 - 3 / 5}
    best = table.best()
    assert best is not None
    assert best.choice == Choice(0, "output", "mean")
    tied = AlignmentTable()
    tied.add({2: torch.ones(1, 1, 2, 1), 1: torch.ones(1, 1, 2, 1)}, [[0]], [[0]], [read_links("0-0")])
    best = tied.best()
    assert best is not None
    assert best.choice == Choice(1, "output", "mean")


def test_a_table_without_links_has_measures_and_no_best() -> None:
    table = AlignmentTable()
    assert table.best() is None
    assert table.rows() == []
    table.add({0: THREE_ROWS[None]}, [[0, 1]], [[0, 1]])
    assert table.best() is None
    row = table[Choice(0, "shifted", "max")]
    assert row.counts == AlignmentCounts()
    assert row.measures["monotonicity"] == 1
    with pytest.raises(KeyError, match="layer 1, output row, mean over heads"):
        table[Choice(1, "output", "mean")]


def test_empty_links_say_that_nothing_may_be_linked() -> None:
    table = AlignmentTable()
    table.add({0: THREE_ROWS[None]}, [[0, 1]], [[0, 1]], [read_links("")])
    row = table.best()
    assert row is not None
    assert row.counts == AlignmentCounts(predicted=2)
    assert row.counts.aer == 1


def test_what_does_not_fit_the_table_is_refused() -> None:
    table = AlignmentTable()
    with pytest.raises(UserError, match=r"source word 0 to target word 2.*2 source and 2 target words"):
        table.add({0: THREE_ROWS[None]}, [[0, 1]], [[0, 1]], [read_links("1-1 0?2")])
    with pytest.raises(ValueError, match="different numbers of pairs"):
        table.add({0: THREE_ROWS[None]}, [[0, 1]], [[0, 1], [0]])
    table.add({0: THREE_ROWS[None]}, [[0, 1]], [[0, 1]])
    with pytest.raises(ValueError, match="layers"):
        table.add({1: THREE_ROWS[None]}, [[0, 1]], [[0, 1]])


# Alignment by masking


def test_masking_links_go_to_the_word_whose_loss_hurts_most() -> None:
    base = torch.tensor([-1.0, -2.0, -0.5])
    masked = torch.tensor([[-4.0, -2.5, -0.4], [-1.5, -6.0, -0.5]])  # two source words; nothing lowers the third target
    assert masking_links(masked, base) == Links(frozenset({(0, 0), (1, 1)}), frozenset({(0, 0), (1, 1)}))
    assert masking_links(torch.tensor([[-math.inf], [-3.0]]), torch.tensor([-1.0])).sure == {(0, 0)}
    assert masking_links(torch.zeros(2, 0), torch.zeros(0)) == read_links("")
    assert masking_links(torch.zeros(0, 2), torch.zeros(2)) == read_links("")
    with pytest.raises(ValueError, match="NaN"):
        masking_links(torch.tensor([[math.nan]]), torch.tensor([-1.0]))
