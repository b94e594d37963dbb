"""Protects the interventions that judge every map: each number of the design, and the fast against the plain."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from triptych.attention import Attend, AttentionMask
from triptych.explain.evaluation import faithfulness
from triptych.explain.evaluation.faithfulness import (
    area,
    class_sensitivity,
    compactness,
    comprehensiveness,
    counts,
    deletion,
    insertion,
    jensen_shannon,
    measure,
    median_change,
    order,
    permuted,
    random_orders,
    sufficiency,
    total_variation,
    uniform,
    without_keys,
)
from triptych.maps.capture import capture, intervene


def additive(parts: Tensor) -> Callable[[Tensor, str], Tensor]:
    """A model whose output is the sum of what each remaining unit contributes (B U)."""

    def probability(removed: Tensor, start: str) -> Tensor:
        return (parts[:, None] * ~removed).sum(-1)

    return probability


PARTS = torch.tensor([[4.0, 3.0, 2.0, 1.0]])


def test_area_by_hand() -> None:
    assert area(torch.tensor([1, 0.5, 0.25, 0.25, 0])).item() == 0.375
    # The same line in uneven steps: 1 at 0, .5 at .5, .25 at .75, 0 at 1.
    uneven = area(torch.tensor([1, 0.5, 0.25, 0.0]), torch.tensor([0.0, 0.5, 0.75, 1.0]))
    assert uneven.item() == 0.5


def test_deletion_of_an_additive_output() -> None:
    most = deletion(additive(PARTS), order(PARTS)[:, None])
    assert most.tolist() == [[[10, 6, 3, 1, 0]]]
    assert area(most).item() == 3.75
    assert area(deletion(additive(PARTS), order(PARTS, least_first=True)[:, None])).item() == 6.25
    every = torch.tensor(list(itertools.permutations(range(4))))[None]
    assert area(deletion(additive(PARTS), every)).mean().item() == pytest.approx(5.0)


def test_insertion_starts_from_nothing_and_brings_the_best_back_first() -> None:
    assert insertion(additive(PARTS), order(PARTS)[:, None]).tolist() == [[[0, 4, 7, 9, 10]]]


def test_each_curve_names_its_start_and_no_set_is_asked_twice() -> None:
    asked = []

    def probability(removed: Tensor, start: str) -> Tensor:
        asked.append((start, removed.shape[1]))
        return removed.float().mean(-1)

    orders = random_orders(3, 6, count=10, seed=0)
    deletion(probability, orders)
    insertion(probability, orders)
    # 10 orders of 7 points, where nothing removed and everything removed are each the same for all.
    assert asked == [("deletion", 52), ("insertion", 52)]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 7), st.one_of(st.none(), st.integers(1, 9)), st.integers())
def test_curves_equal_removing_one_unit_at_a_time(B: int, K: int, U: int, points: int | None, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed % 2**32)
    kernel = torch.randn(B, U, generator=generator).double()
    hidden = torch.randn(U, U, generator=generator).double()

    def probability(removed: Tensor, start: str) -> Tensor:
        kept = (~removed).double()
        bent = torch.tanh(kept @ hidden) * (1.0 if start == "deletion" else 0.5)
        return torch.sigmoid((bent * kernel[:, None]).sum(-1))

    orders = random_orders(B, U, count=K, seed=seed % 2**32)
    sizes = counts(U, points).tolist()
    curves = {"deletion": deletion(probability, orders, points), "insertion": insertion(probability, orders, points)}
    for start, curve in curves.items():
        assert curve.shape == (B, K, len(sizes))
        for b, k in itertools.product(range(B), range(K)):
            for step, size in enumerate(sizes):
                removed = torch.full((B, 1, U), start == "insertion")
                for unit in orders[b, k, :size]:
                    removed[b, 0, unit] = start == "deletion"
                assert curve[b, k, step].item() == pytest.approx(probability(removed, start)[b, 0].item(), abs=1e-12)


def test_steps_of_a_curve() -> None:
    assert counts(4).tolist() == [0, 1, 2, 3, 4]
    assert counts(3, 10).tolist() == [0, 1, 2, 3]
    assert counts(49, 4).tolist() == [0, 12, 24, 37, 49]
    for units, points in ((0, None), (4, 0)):
        with pytest.raises(ValueError, match="at least 1 unit and 1 point"):
            counts(units, points)


def test_comprehensiveness_and_sufficiency_of_the_design_document() -> None:
    """p(x)=.9, without the one top unit .3, with only it .7."""

    def probability(removed: Tensor, start: str) -> Tensor:
        assert start == "deletion"
        table = {(False, False): 0.9, (True, False): 0.3, (False, True): 0.7}
        return torch.tensor([[table[tuple(each)] for each in sets.tolist()] for sets in removed])

    orders = torch.tensor([[[0, 1]]])
    assert comprehensiveness(probability, orders).item() == pytest.approx(0.6)
    assert sufficiency(probability, orders).item() == pytest.approx(0.2)


def test_top_shares_of_ten_units_are_1_1_1_2_5() -> None:
    parts = torch.tensor([[10.0, 9, 8, 7, 6, 5, 4, 3, 2, 1]])
    orders = order(parts)[:, None]
    assert comprehensiveness(additive(parts), orders).item() == pytest.approx((10 * 3 + 19 + 40) / 5)
    assert sufficiency(additive(parts), orders).item() == pytest.approx(55 - (10 * 3 + 19 + 40) / 5)


def test_measure_takes_the_real_spacing_of_coarse_steps() -> None:
    """Equal parts fall on a straight line whatever the steps: each area is half of the whole."""
    parts = torch.full((2, 7), 1 / 7)
    figures = measure(additive(parts), random_orders(2, 7, count=3), points=4)
    assert figures.deletion == pytest.approx(torch.full((2, 3), 0.5))
    assert figures.insertion == pytest.approx(torch.full((2, 3), 0.5))
    assert figures.comprehensiveness.shape == figures.sufficiency.shape == (2, 3)


def test_order_breaks_ties_by_index_or_by_a_seed() -> None:
    scores = torch.tensor([[0.0, 2.0, 0.0, 1.0, 0.0]])
    assert order(scores).tolist() == [[1, 3, 0, 2, 4]]
    assert order(scores, least_first=True).tolist() == [[0, 2, 4, 3, 1]]
    seeded = [tuple(order(scores, seed=seed)[0].tolist()) for seed in range(40)]
    assert {each[:2] for each in seeded} == {(1, 3)}
    assert {each[2:] for each in seeded} == set(itertools.permutations((0, 2, 4)))
    assert order(scores, seed=3).tolist() == order(scores, seed=3).tolist()
    with pytest.raises(ValueError, match="finite"):
        order(torch.tensor([[0.0, math.nan]]))


def test_random_orders_are_permutations_of_their_own_for_each_example() -> None:
    orders = random_orders(5, 9, count=10, seed=1)
    assert (orders.sort(-1).values == torch.arange(9)).all()
    assert len(set(map(tuple, orders.reshape(50, 9).tolist()))) == 50
    assert (orders == random_orders(5, 9, count=10, seed=1)).all()
    assert (orders != random_orders(5, 9, count=10, seed=2)).any()


def test_distances_by_hand() -> None:
    assert jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])).item() == pytest.approx(0.2158, abs=5e-5)
    assert jensen_shannon(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])).item() == pytest.approx(math.log(2))
    assert total_variation(torch.tensor([0.9, 0.1]), torch.tensor([0.6, 0.4])).item() == pytest.approx(0.3)


def test_permuting_attention_of_the_design_document() -> None:
    """Hidden states fixed: y = sigmoid(a . h); a binary output's total variation is |dy|."""
    weights, hidden = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([2.0, 0.0, -1.0])
    clean = torch.sigmoid(weights @ hidden)
    assert clean.item() == pytest.approx(0.7858, abs=5e-5)
    changed = torch.sigmoid(torch.tensor(list(itertools.permutations(weights.tolist()))) @ hidden)
    both = [torch.stack([each, 1 - each], dim=-1) for each in (clean, changed)]
    assert median_change(both[0][None], both[1][None]).item() == pytest.approx(0.2486, abs=5e-5)


def test_class_sensitivity_by_hand() -> None:
    first = torch.tensor([1.0, 2.0, 4.0])
    assert class_sensitivity(first, first).item() == 0
    assert class_sensitivity(first, -first).item() == pytest.approx(2)
    assert class_sensitivity(first, 3 * first + 1).item() == pytest.approx(0, abs=1e-12)
    assert class_sensitivity(torch.tensor([1.0, 0, -1]), torch.tensor([1.0, -2, 1])).item() == pytest.approx(1)


@given(st.integers(0, 2**32 - 1), st.integers(2, 9))
def test_class_sensitivity_is_one_minus_scipys_correlation_of_each_pair(seed: int, U: int) -> None:
    """Maps that are multiples of one another must not leave 0 to 2 by a rounding."""
    generator = torch.Generator().manual_seed(seed)
    first, second = torch.randn(2, 3, 4, U, generator=generator)
    second[0], second[1], second[2, 0] = 3 * first[0] + 1, -first[1], 7.0
    sensitivity = class_sensitivity(first, second)
    assert sensitivity.shape == (3, 4)
    assert ((sensitivity >= 0) & (sensitivity <= 2)).sum() == 11
    assert math.isnan(sensitivity[2, 0].item())
    for i, j in ((0, 0), (1, 3), (2, 1)):
        wanted = 1 - stats.pearsonr(first[i, j].double().numpy(), second[i, j].double().numpy()).statistic
        assert sensitivity[i, j].item() == pytest.approx(wanted, abs=1e-12)


@pytest.mark.filterwarnings("error")
def test_a_constant_map_has_no_correlation_but_is_the_same_as_itself() -> None:
    flat = torch.full((3,), 0.1)
    assert class_sensitivity(flat, flat).item() == 0
    assert math.isnan(class_sensitivity(flat, torch.tensor([1.0, 2, 4])).item())
    assert faithfulness.constant(torch.tensor([[0.1, 0.1 + 1e-9], [0, 0], [0.1, 0.2]])).tolist() == [True, True, False]


def test_compactness_by_hand() -> None:
    assert compactness(torch.tensor([1, -2, 0.05, 0.1, 0.11])).item() == pytest.approx(0.4)
    assert math.isnan(compactness(torch.zeros(3)).item())


@given(st.integers(0, 2**32 - 1), st.integers(1, 6), st.booleans())
def test_replaced_weights_keep_to_what_the_mask_let_be_seen(seed: int, T: int, causal: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    visible = torch.ones(T, T, dtype=torch.bool).tril() if causal else torch.rand(T, T, generator=generator) < 0.7
    scores = torch.randn(2, 3, T, T, generator=generator).masked_fill(~visible, -1e9)
    weights = scores.softmax(-1) * visible
    changed = permuted(weights, generator)
    assert (changed[..., ~visible] == 0).all()
    assert (changed.sort(-1).values == weights.sort(-1).values).all()
    even = uniform(weights)
    assert (even[..., ~visible] == 0).all()
    expected = visible / visible.sum(-1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(even, expected.expand_as(even).to(even))


def test_every_permutation_of_the_visible_keys_is_as_likely() -> None:
    weights = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(6000, 4)
    drawn = permuted(weights, torch.Generator().manual_seed(0))
    seen = [tuple(round(weight, 1) for weight in row) for row in drawn.tolist()]
    shares = {each: seen.count(each) / 6000 for each in set(seen)}
    assert len(shares) == 6
    assert all(abs(share - 1 / 6) < 0.02 for share in shares.values())


def test_knocked_out_keys_get_nothing_and_the_rest_sums_to_one() -> None:
    weights = torch.tensor([[[[1.0, 0.0], [0.8, 0.2]]], [[[0.4, 0.6], [0.5, 0.5]]]])
    left = without_keys(weights, torch.tensor([[True, False], [False, False]]))
    torch.testing.assert_close(left, torch.tensor([[[[0.0, 0.0], [0.0, 1.0]]], [[[0.4, 0.6], [0.5, 0.5]]]]))


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = Attend(backend="naive")

    def forward(self, x: Tensor, mask: AttentionMask) -> Tensor:
        return self.attend(x, x, x, mask)


def test_weights_are_replaced_inside_a_running_attention() -> None:
    """Uniform causal attention is the running mean of the values, whatever queries and keys are."""
    x = torch.randn(2, 1, 5, 4, generator=torch.Generator().manual_seed(0))
    model, mask = _Attending(), AttentionMask(causal=True)
    with intervene(model, lambda weights, site: uniform(weights)):
        context = model(x, mask)
    torch.testing.assert_close(context, x.cumsum(2) / torch.arange(1, 6)[:, None])

    with capture(model) as maps:
        clean = model(x, mask)
    generator = torch.Generator().manual_seed(0)
    with intervene(model, lambda weights, site: permuted(weights, generator)):
        shuffled = model(x, mask)
    assert (shuffled[:, :, 1:] - clean[:, :, 1:]).abs().max() > 0.01
    torch.testing.assert_close(shuffled[:, :, 0], clean[:, :, 0])  # one visible key: nothing to permute
    wanted = permuted(maps["attend"].weights, torch.Generator().manual_seed(0)) @ x
    torch.testing.assert_close(shuffled, wanted)
