"""Decoding: the cache changes nothing but the cost, the window moves as promised, and every option does its work."""

import math
from collections import Counter

import pytest
import torch
from small import stirred

from triptych.errors import UserError
from triptych.models.sampling import draw, generate, window_start


def test_the_window_keeps_the_last_half() -> None:
    # Context 8: whole until 8 tokens stand; then 4 are dropped, and 4 more each time it is full again.
    starts = [window_start(length, 8) for length in range(1, 18)]
    assert starts == [0] * 8 + [4] * 4 + [8] * 4 + [12]
    # Odd context 5: 3 are dropped, 2 and the new one are kept.
    assert [window_start(length, 5) for length in range(4, 12)] == [0, 0, 3, 3, 3, 6, 6, 6]
    assert [window_start(length, 1) for length in (1, 2, 3)] == [0, 1, 2]


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("context", [1, 2, 7, 16])
def test_the_cache_changes_no_token(backend: str, positions: str, context: int) -> None:
    model = stirred(backend=backend, positions=positions, context=context)
    cached = list(generate(model, [1, 2, 3], length=40, temperature=0))
    assert cached == list(generate(model, [1, 2, 3], length=40, temperature=0, cached=False))


def test_every_step_scores_as_a_full_pass_over_its_window() -> None:
    model, scores = stirred(), []
    hook = model.register_forward_hook(lambda module, args, out: scores.append(out[0, -1]))
    tokens = [4, 2, *generate(model, [4, 2], length=50, generator=seeded(0))]
    hook.remove()
    for length, found in enumerate(scores, start=2):
        window = tokens[window_start(length, 16) : length]
        with torch.no_grad():
            assert torch.allclose(found, model(torch.tensor([window]))[0, -1], atol=1e-5)


def test_a_prompt_longer_than_the_context() -> None:
    model = stirred()
    prompt = [index % 11 for index in range(50)]
    assert list(generate(model, prompt, length=1, temperature=0)) == list(
        generate(model, prompt[window_start(50, 16) :], length=1, temperature=0)
    )


def test_the_cache_costs_one_position_a_step_and_half_a_context_a_refill() -> None:
    model, seen = stirred(), []
    model.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    list(generate(model, [1, 2, 3], length=24, temperature=0))
    assert seen == [3] + [1] * 13 + [9] + [1] * 7 + [9, 1]


def test_it_streams_and_leaves_gradients_alone() -> None:
    stream = generate(stirred(), [1], length=5)
    next(stream)
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert len(list(stream)) == 4


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_a_seed_repeats_and_another_does_not() -> None:
    model = stirred()
    one, same, other = (list(generate(model, [1], length=30, generator=seeded(s))) for s in (1, 1, 2))
    assert one == same
    assert one != other


def test_top_k_1_is_greedy() -> None:
    model = stirred()
    assert list(generate(model, [1], length=20, top_k=1)) == list(generate(model, [1], length=20, temperature=0))


# Probabilities 1/2, 1/4, 1/8, 1/8.
LOGITS = torch.tensor([8.0, 4.0, 2.0, 2.0]).log()
OPEN = {"temperature": 1.0, "top_k": None, "top_p": None}


def counts(**options) -> Counter:
    generator = seeded(0)
    return Counter(draw(LOGITS, **OPEN | options, generator=generator) for _ in range(2000))


def test_draws_follow_the_probabilities() -> None:
    drawn = counts()
    assert drawn[0] / 2000 == pytest.approx(0.5, abs=0.04)
    assert drawn[1] / 2000 == pytest.approx(0.25, abs=0.04)
    # Temperature 1/2 squares them: 64 : 16 : 4 : 4.
    assert counts(temperature=0.5)[0] / 2000 == pytest.approx(64 / 88, abs=0.04)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"top_k": 2}, {0, 1}),
        ({"top_k": 99}, {0, 1, 2, 3}),
        ({"top_p": 0.4}, {0}),  # the best alone already passes
        ({"top_p": 0.6}, {0, 1}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"temperature": 0}, {0}),
        ({"temperature": 1e-40}, {0}),  # dividing by it overflows
        ({"forbidden": [0]}, {1, 2, 3}),
        ({"forbidden": [0], "temperature": 0}, {1}),
        ({"forbidden": [0], "top_k": 1}, {1}),
        ({"forbidden": (0, 1), "top_p": 0.1}, {2, 3}),
        ({"temperature": 1e30, "forbidden": [3]}, {0, 1, 2}),
    ],
)
def test_what_may_be_drawn(options: dict, kept: set) -> None:
    drawn = set(counts(**options))
    assert drawn <= kept
    if "top_p" not in options or len(kept) != 2 or kept == {0, 1}:
        assert drawn == kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 0}, "length=0; it must be at least 1"),
        ({"temperature": -1.0}, "temperature=-1.0; it must be 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0; it must be at least 1"),
        ({"top_p": 0.0}, "top_p=0.0; it must be in 0 < top_p <= 1"),
        ({"top_p": 1.5}, "top_p=1.5"),
    ],
)
def test_options_out_of_range(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        next(generate(stirred(), [1], **{"length": 1} | options))


def test_an_empty_prompt() -> None:
    with pytest.raises(UserError, match="the prompt is empty"):
        next(generate(stirred(), [], length=1))
