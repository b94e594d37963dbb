"""Beam search: worked by hand, against brute force, against a plain search without cache, and in any company."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from translators import KINDS, sources, stirred

from triptych.errors import UserError
from triptych.models.beam_search import Hypothesis, beam, check_options, length_factor
from triptych.models.translator import END, PAD, START, UNKNOWN

A, B, C = 4, 5, 6
NONE = {"length_penalty": 0.0, "best": 1}


class ByHand:
    """A "model" whose next token depends on what was written: ``table[prefix]`` holds probabilities."""

    positions = 50

    def __init__(self, table: dict[tuple[int, ...], dict[int, float]], vocab_size: int = 7) -> None:
        self.table, self.vocab_size = table, vocab_size
        self.steps = 0

    def start(self, source: Tensor) -> "ByHand.Written":
        return self.Written([()] * len(source))

    def step(self, tokens: Tensor, state: "ByHand.Written") -> Tensor:
        self.steps += 1
        state.prefixes = [(*prefix, token) for prefix, token in zip(state.prefixes, tokens.tolist(), strict=True)]
        logits = torch.full((len(tokens), self.vocab_size), -torch.inf, dtype=torch.float64)
        for row, prefix in enumerate(state.prefixes):
            for token, probability in self.table[prefix[1:]].items():
                logits[row, token] = math.log(probability)
        return logits

    class Written:
        def __init__(self, prefixes: list[tuple[int, ...]]) -> None:
            self.prefixes = prefixes

        def select(self, rows: Tensor) -> None:
            self.prefixes = [self.prefixes[row] for row in rows.tolist()]


# a is likelier than b, but then goes on in several ways: "a" 0.24, "b" 0.36, "a b" 0.18, "a a" 0.18, "b a" 0.04.
GARDEN_PATH = {
    (): {A: 0.6, B: 0.4},
    (A,): {END: 0.4, B: 0.3, A: 0.3},
    (B,): {END: 0.9, A: 0.1},
    (A, A): {END: 1.0},
    (A, B): {END: 1.0},
    (B, A): {END: 1.0},
}
ONE = torch.tensor([[A, END]])


def words(hypotheses: list[Hypothesis]) -> list[tuple[list[int], float]]:
    return [(each.tokens, round(math.exp(each.score), 6)) for each in hypotheses]


def test_a_beam_of_two_finds_what_greedy_misses() -> None:
    (greedy,) = beam(ByHand(GARDEN_PATH), ONE, size=1, **NONE)
    assert words(greedy) == [([A], 0.24)]
    (found,) = beam(ByHand(GARDEN_PATH), ONE, size=2, length_penalty=0.0, best=2)
    assert words(found) == [([B], 0.36), ([A], 0.24)]


def test_every_hypothesis_by_hand() -> None:
    (found,) = beam(ByHand(GARDEN_PATH), ONE, size=5, length_penalty=0.0, best=5)
    assert words(found)[:2] == [([B], 0.36), ([A], 0.24)]
    assert sorted(words(found)[2:]) == [([A, A], 0.18), ([A, B], 0.18), ([B, A], 0.04)]


def test_it_stops_as_soon_as_nothing_better_can_come() -> None:
    model = ByHand(GARDEN_PATH)
    beam(model, ONE, size=3, **NONE)
    assert model.steps == 2  # "a a" has 0.18 so far, and "b" 0.36
    model = ByHand(GARDEN_PATH)
    beam(model, ONE, size=3, length_penalty=0.0, best=3)
    assert model.steps == 3


# "a" has 0.55, "b c" 0.45. Over ((5 + 2) / 6)^3 and ((5 + 3) / 6)^3: -0.5978 / 1.5880 and -0.7985 / 2.3704.
LONGER = {(): {A: 0.55, B: 0.45}, (A,): {END: 1.0}, (B,): {C: 1.0}, (B, C): {END: 1.0}}


def test_the_length_penalty_by_hand() -> None:
    assert length_factor(2, 3.0) == pytest.approx(1.5880, abs=5e-5)
    assert length_factor(1, 0.7) == 1
    for penalty, expected in ((0.0, [A]), (2.0, [A]), (3.0, [B, C])):  # they are equal at 2.168
        (found,) = beam(ByHand(LONGER), ONE, size=2, length_penalty=penalty, best=1)
        assert found[0].tokens == expected
    (found,) = beam(ByHand(LONGER), ONE, size=2, length_penalty=3.0, best=2)
    assert [each.score for each in found] == pytest.approx([-0.7985 / 2.3704, -0.5978 / 1.5880], abs=1e-4)


def test_a_length_penalty_that_could_still_matter_keeps_the_search_going() -> None:
    model = ByHand(LONGER)
    beam(model, ONE, size=2, length_penalty=3.0, best=1)
    assert model.steps == 3
    model = ByHand(LONGER)
    # At most two tokens and the end: "b" could reach -0.7985 / 1.3333, no better than "a" with -0.5978 / 1.1667.
    beam(model, ONE, size=2, length_penalty=1.0, best=1, max_length=2)
    assert model.steps == 2


def test_at_the_limit_only_the_end_is_left() -> None:
    endless = {(A,) * n: {A: 0.9, END: 0.1} for n in range(60)}
    (found,) = beam(ByHand(endless), ONE, size=1, **NONE, max_length=3)
    assert found[0].tokens == [A] * 3
    assert found[0].score == pytest.approx(3 * math.log(0.9) + math.log(0.1))
    # A limit for each: twice the source of 2 and 1 tokens; then the usual one, and the model's own.
    pair = torch.tensor([[A, END], [END, PAD]])
    found = beam(ByHand(endless), pair, size=1, **NONE, max_length=lambda length: 2 * length)
    assert [len(best.tokens) for (best,) in found] == [4, 2]
    assert len(beam(ByHand(endless), ONE, size=1, **NONE)[0][0].tokens) == 14
    assert len(beam(ByHand(endless), ONE, size=1, **NONE, max_length=99)[0][0].tokens) == 49


def test_special_tokens_are_never_written() -> None:
    table = {(): {PAD: 0.3, START: 0.3, UNKNOWN: 0.3, A: 0.1}, (A,): {UNKNOWN: 0.6, END: 0.4}}
    (found,) = beam(ByHand(table), ONE, size=3, length_penalty=0.0, best=3)
    assert words(found) == [([A], 0.04)]  # fewer than asked for exist


def test_a_model_of_no_numbers_is_found_out() -> None:
    model = ByHand({(): {A: math.nan, END: math.nan}})
    with pytest.raises(ValueError, match="no translation has a finite probability"):
        beam(model, ONE, size=1, **NONE)


def test_no_sentences_no_translations() -> None:
    assert beam(ByHand({}), torch.zeros(0, 3, dtype=torch.long), size=2, **NONE) == []


@pytest.mark.parametrize("penalty", [0.0, 1.0])
@pytest.mark.parametrize("best", [1, 4, 15])
def test_a_beam_wide_enough_is_brute_force(penalty: float, best: int) -> None:
    """Two words, at most three of them: 15 sentences."""
    generator = torch.Generator().manual_seed(5)
    table: dict[tuple[int, ...], dict[int, float]] = {}
    every: list[Hypothesis] = []
    for length in range(4):
        for prefix in itertools.product((A, B), repeat=length):
            chances = torch.rand(3, generator=generator, dtype=torch.float64)
            table[prefix] = dict(zip((A, B, END), (chances / chances.sum()).tolist(), strict=True))
    for prefix in table:
        log = sum(math.log(table[prefix[:n]][token]) for n, token in enumerate((*prefix, END)))
        every.append(Hypothesis(list(prefix), log / ((5 + len(prefix) + 1) / 6) ** penalty))
    every.sort(key=lambda each: -each.score)
    (found,) = beam(ByHand(table, 16), ONE, size=15, length_penalty=penalty, best=best, max_length=3)
    assert [each.tokens for each in found] == [each.tokens for each in every[:best]]
    assert [each.score for each in found] == pytest.approx([each.score for each in every[:best]])


SOURCES = sources([1 + 5 * n % 9 for n in range(64)])


def fickle(kind: str) -> torch.nn.Module:
    """Random weights; predictions so sharp, and an end so moody, that sentences of many lengths come out."""
    model = stirred(kind, tied=False)
    with torch.no_grad():
        model.predict.weight.mul_(0.7 if kind == "transformer" else 4.0)
        model.predict.weight[END] *= 1.7
    return model


def plain_search(model: torch.nn.Module, source: Tensor, size: int, penalty: float, best: int, limit: int) -> list:
    """One sentence, every step a whole pass, nothing left out early."""
    live, done = [(0.0, [START])], []
    while live:
        read = torch.tensor([tokens for _, tokens in live])
        with torch.no_grad():
            logs = model(source.expand(len(live), -1), read)[:, -1].log_softmax(-1)
        allowed = [END] if read.shape[1] > limit else [END, *range(4, logs.shape[1])]
        ways = [
            (score + row[t].item(), [*tokens, t])
            for (score, tokens), row in zip(live, logs, strict=True)
            for t in allowed
        ]
        ways.sort(key=lambda way: -way[0])
        live = []
        for score, tokens in ways[: size - len(done)]:
            if tokens[-1] == END:
                done.append((tokens[1:-1], score / ((5 + len(tokens) - 1) / 6) ** penalty))
            else:
                live.append((score, tokens))
    return sorted(done, key=lambda way: -way[1])[:best]


@pytest.mark.parametrize("kind", ["transformer", "general"])
@pytest.mark.parametrize(("size", "penalty", "best"), [(1, 0.0, 1), (2, 0.0, 2), (4, 1.0, 1), (5, 0.6, 3)])
def test_the_cache_and_stopping_early_change_nothing(kind: str, size: int, penalty: float, best: int) -> None:
    model = fickle(kind)
    found = beam(model, SOURCES, size=size, length_penalty=penalty, best=best)
    of_length = {len(hypotheses[0].tokens): row for row, hypotheses in enumerate(found)}
    assert len(of_length) > 3
    for _, row in sorted(of_length.items())[:4]:  # the shortest: here every step is a whole pass
        source = SOURCES[row : row + 1, : int((SOURCES[row] != 0).sum())]
        expected = plain_search(model, source, size, penalty, best, min(2 * source.shape[1] + 10, 23))
        assert [each.tokens for each in found[row]] == [tokens for tokens, _ in expected]
        assert [each.score for each in found[row]] == pytest.approx([score for _, score in expected], abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 4])
def test_company_changes_nothing(kind: str, size: int) -> None:
    """Alone and unpadded, or 64 at once."""
    model = fickle(kind)
    options = {"size": size, "length_penalty": 0.8, "best": size}
    together = beam(model, SOURCES, **options)
    lengths = set()
    for row, hypotheses in zip(SOURCES, together, strict=True):
        (alone,) = beam(model, row[None, : int((row != 0).sum())], **options)
        assert [each.tokens for each in alone] == [each.tokens for each in hypotheses]
        assert [each.score for each in alone] == pytest.approx([each.score for each in hypotheses], abs=1e-10)
        lengths.add(len(alone[0].tokens))
    assert len(lengths) > 3
    assert len({tuple(each[0].tokens) for each in together}) > 10


def test_a_finished_sentence_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    model, rows = fickle("transformer"), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda tokens, state: rows.append(len(tokens)) or step(tokens, state))
    found = beam(model, SOURCES, size=1, **NONE)
    lengths = torch.tensor([len(best.tokens) + 1 for (best,) in found])
    assert rows == [int((lengths > n).sum()) for n in range(int(lengths.max()))]


def test_gradients_and_random_state_are_left_alone() -> None:
    model, before = fickle("transformer"), torch.get_rng_state()
    beam(model, SOURCES[:3], size=2, **NONE)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 0}, "beam=0; it must be at least 1, which is greedy"),
        ({"size": 18}, "beam=18 is larger than the vocabulary of 17 tokens; use at most 17"),
        ({"length_penalty": -0.1}, "length_penalty=-0.1; it must be at least 0"),
        ({"length_penalty": math.inf}, "length_penalty=inf"),
        ({"length_penalty": math.nan}, "length_penalty=nan"),
        ({"best": 3}, "n_best=3; it must be at least 1 and at most the beam, which is 2"),
        ({"best": 0}, "n_best=0"),
        ({"max_length": 0}, "max_length=0; a translation must be allowed at least 1 token"),
        ({"max_length": lambda length: length - 1}, "max_length=0"),
    ],
)
def test_options_out_of_range(options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        beam(stirred(), SOURCES, **{"size": 2, "length_penalty": 0.0, "best": 1} | options)


def test_options_are_checked_without_a_model_too() -> None:
    check_options(size=17, length_penalty=0.0, best=17, vocab_size=17)
    with pytest.raises(UserError, match="beam=18 is larger than the vocabulary of 17"):
        check_options(size=18, length_penalty=0.0, best=1, vocab_size=17)
