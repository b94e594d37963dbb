"""The translator: padding changes nothing, steps through the cache are one pass, sizes are counted, and it learns."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from translators import TRANSFORMER, sources, stirred, targets, untouched

from triptych.attention import Attend, AttentionMask, LayerCache
from triptych.errors import UserError
from triptych.maps.capture import capture, sites
from triptych.models import translator
from triptych.models.blocks import parameter_count
from triptych.training.optimizers import hidden_matrices

POSITIONAL = ("rotary", "learned", "sinusoidal")
SOURCE = sources([7, 3, 5, 1])
READ, EXPECTED = targets([4, 6, 2, 5])


def loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(SOURCE, READ).flatten(0, 1), EXPECTED.flatten(), ignore_index=0)


def test_special_tokens_are_the_tokenizers() -> None:
    from triptych.data import tokenizers

    assert (translator.PAD, translator.START, translator.END, translator.UNKNOWN) == (
        tokenizers.PAD_ID,
        tokenizers.START_ID,
        tokenizers.END_ID,
        tokenizers.UNKNOWN_WORD_ID,
    )


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("positional", POSITIONAL)
def test_cached_steps_equal_one_pass(backend: str, positional: str) -> None:
    """Rows reordered and dropped on the way, as beam search does."""
    model = stirred(backend=backend, positional=positional, qk_norm=True)
    with torch.no_grad():
        whole, state = model(SOURCE, READ), model.start(SOURCE)
        rows = torch.arange(4)
        for position in range(READ.shape[1]):
            real = EXPECTED[rows, position] != 0
            if not real.all():  # finished ones leave
                state.select(real.nonzero().flatten())
                rows = rows[real]
            found = model.step(READ[rows, position], state)
            assert torch.allclose(found, whole[rows, position], rtol=0, atol=1e-10)
            shuffled = torch.arange(len(rows)).flip(0)
            state.select(shuffled)
            rows = rows[shuffled]
    assert rows.tolist() == [1]


def test_repeated_rows_go_their_own_ways() -> None:
    model = stirred()
    with torch.no_grad():
        state = model.start(SOURCE)
        model.step(READ[:, 0], state)
        state.select(torch.tensor([0, 0, 2]))
        second = torch.tensor([5, 6, 7])
        model.step(second, state)
        state.select(torch.tensor([1, 0, 2]))  # same sentences, other hypotheses
        third = torch.tensor([8, 9, 10])
        found = model.step(third, state)
        read = torch.stack([torch.full((3,), 1), second[[1, 0, 2]], third], dim=1)
        assert torch.allclose(found, model(SOURCE[[0, 0, 2]], read)[:, -1], rtol=0, atol=1e-10)


def test_the_memory_is_projected_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = stirred(), []
    for block in model.decoder:
        block.cross.key.register_forward_hook(lambda module, args, out: calls.append(out.shape))
    with torch.no_grad():
        state = model.start(SOURCE)
        for position in range(3):
            model.step(READ[:, position], state)
    assert len(calls) == len(model.decoder)


@pytest.mark.parametrize("backend", ["naive", "flash"])
@pytest.mark.parametrize("positional", POSITIONAL)
def test_a_sentence_is_translated_alike_alone_and_among_longer_ones(backend: str, positional: str) -> None:
    model = stirred(backend=backend, positional=positional)
    with torch.no_grad():
        together = model(SOURCE, READ)
        for row in range(4):
            s, t = int((SOURCE[row] != 0).sum()), int((READ[row] != 0).sum())
            alone = model(SOURCE[row : row + 1, :s], READ[row : row + 1, :t])
            assert torch.allclose(together[row, :t], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", ["naive", "flash"])
def test_what_stands_at_padded_places_changes_nothing(backend: str) -> None:
    """NaN in the padding's embedding, and NaN in the encoder's input at padded places: same outputs and gradients."""

    def solve(model: nn.Module) -> list[Tensor]:
        real = EXPECTED != 0
        logits = model(SOURCE, READ)[real]
        logits.square().sum().backward()
        return [logits.detach(), *(parameter.grad for parameter in model.parameters())]

    plain, broken, inside = (stirred(backend=backend, tied=False) for _ in range(3))
    with torch.no_grad():
        broken.source_embedding.token.weight[0] = torch.nan
        broken.target_embedding.token.weight[0] = torch.nan
    padded = (SOURCE == 0)[..., None]
    inside.encoder[0].register_forward_pre_hook(
        lambda module, args: (args[0].masked_fill(padded, torch.nan), *args[1:])
    )
    expected = solve(plain)
    for one, other in zip(expected, solve(broken), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)
    with torch.no_grad():
        found = inside(SOURCE, READ)[EXPECTED != 0]
    assert torch.allclose(expected[0], found, rtol=0, atol=1e-10)


def test_backends_agree_on_loss_and_gradients() -> None:
    def run(backend: str) -> list[Tensor]:
        model = stirred(backend=backend, qk_norm=True, positional="learned")
        value = loss(model)
        value.backward()
        return [value.detach(), *(parameter.grad for parameter in model.parameters())]

    for one, other in zip(run("naive"), run("flash"), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


def test_a_later_target_token_never_changes_an_earlier_output_and_a_source_token_changes_all() -> None:
    model = stirred()
    changed = READ.clone()
    changed[1, 3] = 9 if READ[1, 3] != 9 else 10
    other = SOURCE.clone()
    other[1, 0] = 9 if SOURCE[1, 0] != 9 else 10
    with torch.no_grad():
        before = model(SOURCE, READ)[1]
        moved = (model(SOURCE, changed)[1] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [False] * 3 + [True] * 3
        assert ((model(other, READ)[1] - before).abs().amax(-1) > 1e-9).all()


@pytest.mark.parametrize("positional", POSITIONAL)
def test_order_matters_in_source_and_target(positional: str) -> None:
    model = stirred(positional=positional, encoder_depth=1, decoder_depth=1)
    a, b = torch.tensor([[5, 6, 2]]), torch.tensor([[6, 5, 2]])
    read, turned = torch.tensor([[1, 5, 6, 7]]), torch.tensor([[1, 6, 5, 7]])
    with torch.no_grad():
        assert not torch.allclose(model(a, read), model(b, read), atol=1e-3)
        assert not torch.allclose(model(a, read)[:, -1], model(a, turned)[:, -1], atol=1e-3)


def test_sinusoids_by_hand() -> None:
    table = translator.Sinusoids(positions=3, width=4, size=1.0)(torch.arange(3))
    # Wavelengths 2 pi and 100 times that; sines, then cosines; a row of root mean square 1.
    row = [math.sin(2), math.sin(0.02), math.cos(2), math.cos(0.02)]
    assert table[2].tolist() == pytest.approx([math.sqrt(2) * each for each in row], abs=1e-6)
    assert torch.allclose(table.square().mean(1), torch.ones(3))


def test_parameters_counted_by_hand() -> None:
    # Width 16, 4 heads of 4, 2 key/value heads: query 16x16, key and value 16x8, output 16x16.
    attention, hidden = 256 + 2 * 128 + 256, 2 * 16 * 24
    encoder, decoder = attention + hidden + 2 * 16, 2 * attention + hidden + 3 * 16
    blocks, table = 2 * encoder + 2 * decoder + 2 * 16, 17 * 16
    assert parameter_count(untouched()) == blocks + table
    assert parameter_count(untouched(tied=False)) == blocks + 3 * table
    assert parameter_count(untouched(positional="learned")) == blocks + table + 2 * 24 * 16
    assert parameter_count(untouched(positional="sinusoidal")) == blocks + table


def test_muon_finds_the_blocks_matrices_and_nothing_else() -> None:
    assert len(hidden_matrices(untouched())) == 2 * 6 + 2 * 10
    assert all(matrix.shape[0] != 17 for matrix in hidden_matrices(untouched(tied=False)))


@pytest.mark.parametrize("tied", [True, False])
def test_it_starts_near_chance(tied: bool) -> None:
    model = untouched(tied=tied, width=64, vocab_size=500, positional="learned").eval()
    start = F.cross_entropy(
        model(sources([9, 5], vocab_size=500), targets([8, 6], vocab_size=500)[0]).flatten(0, 1),
        targets([8, 6], vocab_size=500)[1].flatten(),
        ignore_index=0,
    ).item()
    assert start == pytest.approx(math.log(500), abs=0.4 if tied else 1e-5)


@pytest.mark.parametrize("changes", [{}, {"tied": False, "positional": "learned", "qk_norm": True}])
def test_after_a_few_steps_every_parameter_has_a_gradient(changes: dict) -> None:
    model = untouched(**changes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(4):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("positional", POSITIONAL)
def test_it_learns_one_batch_by_heart(positional: str) -> None:
    model = untouched(positional=positional)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(120):
        value = loss(model)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert value.item() < 0.02


def test_selected_positions_predict_the_same() -> None:
    """A task may project the real positions only."""
    model = stirred()
    real = EXPECTED != 0
    with torch.no_grad():
        assert torch.allclose(model.predict(model.hidden(SOURCE, READ)[real]), model(SOURCE, READ)[real])


def test_dropout_acts_in_training_only() -> None:
    model = stirred(dropout=0.5)
    assert torch.equal(model(SOURCE, READ), model(SOURCE, READ))
    model.train()
    assert not torch.equal(model(SOURCE, READ), model(SOURCE, READ))


def test_maps_of_every_kind_check_themselves() -> None:
    model = stirred()
    names = [f"encoder.{n}.attention.attend" for n in (0, 1)]
    for n in (0, 1):
        names += [f"decoder.{n}.attention.attend", f"decoder.{n}.cross.attend"]
    assert [site.name for site in sites(model)] == names
    assert [site.layer for site in sites(model)] == [0, 1, 0, 0, 1, 1]
    with torch.no_grad(), capture(model) as maps:
        model(SOURCE, READ)
    assert maps.error < 1e-10
    cross = maps["decoder.1.cross.attend"]
    assert (cross.kind, cross.mask.describe(), cross.score) == ("cross", "key padding", "scaled dot product")
    assert maps["decoder.0.attention.attend"].mask.describe() == "causal"
    assert maps["encoder.0.attention.attend"].mask.describe() == "key padding"
    assert cross.example(1)[0].shape == (4, 6, 3)
    assert torch.allclose(cross.example(1)[0].sum(-1), torch.ones(4, 6).double())


def test_what_is_too_long_is_refused() -> None:
    model = stirred()
    long = sources([25])
    with pytest.raises(ValueError, match="25 tokens do not fit the 24 positions"):
        model(long, READ[:1])
    with pytest.raises(ValueError, match="25 tokens do not fit the 24 positions"):
        model(SOURCE[:1], long)
    with torch.no_grad():
        state = model.start(sources([24]))
        for _ in range(24):
            model.step(torch.tensor([5]), state)
        with pytest.raises(ValueError, match="25 tokens do not fit"):
            model.step(torch.tensor([5]), state)


def test_a_selected_cache_grows_up_to_its_capacity() -> None:
    steps = torch.randn(2, 3, 40, 4)
    cache = LayerCache(40)
    cache.extend(steps[:, :, :1], steps[:, :, :1])
    cache.select(torch.tensor([1, 0, 1]))
    turned = steps[[1, 0, 1]]
    for n in range(1, 40):
        key, value = cache.extend(turned[:, :, n : n + 1], -turned[:, :, n : n + 1])
    assert torch.equal(key, turned)
    assert torch.equal(value[:, :, 1:], -turned[:, :, 1:])
    with pytest.raises(ValueError, match="holds 40 positions, and 41 were asked for"):
        cache.extend(turned[:, :, :1], turned[:, :, :1])
    with pytest.raises(ValueError, match="the cache is empty"):
        LayerCache(4).kept()


def test_a_memory_is_given_or_remembered_but_not_both() -> None:
    cross = untouched().decoder[0].cross
    x, memory, mask = torch.zeros(1, 2, 16), torch.zeros(1, 3, 16), AttentionMask()
    with pytest.raises(ValueError, match="cross-attention was called without memory"):
        cross(x, mask)
    with pytest.raises(ValueError, match="with memory and a cache that holds it"):
        cross(x, mask, memory, cross.remember(memory))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder_depth": 0}, "model.encoder_depth=0; it must be at least 1"),
        ({"decoder_depth": 0}, "model.decoder_depth=0"),
        ({"feed_forward": 0}, "model.feed_forward=0"),
        ({"dropout": 1.0}, "model.dropout=1.0; it must be in 0 <= dropout < 1"),
        ({"positional": "none"}, "model.positional=none is not known; use rotary, learned or sinusoidal"),
        ({"heads": 3}, "width=16 does not divide into model.heads=3; what works: 1, 2, 4, 8$"),
        ({"heads": 16, "kv_heads": None}, "model.positional=rotary turns pairs of channels, .* odd"),
        (
            {"width": 15, "heads": 3, "kv_heads": 3, "positional": "sinusoidal"},
            "positional=sinusoidal .*width=15 is odd",
        ),
        ({"kv_heads": 3}, "heads=4 is no multiple of model.kv_heads=3"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refusals(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        untouched(**changes)


@pytest.mark.slow
def test_compiled_equals_eager() -> None:
    eager = translator.Translator(**TRANSFORMER, attention=functools.partial(Attend, backend="flash"))
    for parameter in eager.parameters():
        nn.init.normal_(parameter, std=0.2)
    with torch.no_grad():
        assert torch.allclose(torch.compile(eager)(SOURCE, READ), eager(SOURCE, READ), rtol=1e-3, atol=1e-4)
