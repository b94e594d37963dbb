"""The recurrent translator, with every score: same demands as the transformer, and the score is all that differs."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from translators import KINDS, sources, stirred, targets, untouched

from triptych.errors import UserError
from triptych.maps.capture import capture, sites
from triptych.models.blocks import parameter_count

SCORES = [kind for kind in KINDS if kind != "transformer"]
SOURCE = sources([7, 3, 5, 1])
READ, EXPECTED = targets([4, 6, 2, 5])


def loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(SOURCE, READ).flatten(0, 1), EXPECTED.flatten(), ignore_index=0)


@pytest.mark.parametrize("score", SCORES)
def test_steps_equal_one_pass(score: str) -> None:
    """Rows reordered, repeated and dropped on the way, as beam search does."""
    model = stirred(score)
    with torch.no_grad():
        whole, state = model(SOURCE, READ), model.start(SOURCE)
        rows = torch.arange(4)
        for position in range(READ.shape[1]):
            real = EXPECTED[rows, position] != 0
            if not real.all():
                state.select(real.nonzero().flatten())
                rows = rows[real]
            found = model.step(READ[rows, position], state)
            assert torch.allclose(found, whole[rows, position], rtol=0, atol=1e-10)
            shuffled = torch.tensor([0, *range(len(rows))]).flip(0)  # the first one twice
            state.select(shuffled)
            rows = rows[shuffled]
    assert set(rows.tolist()) == {1}


@pytest.mark.parametrize("score", SCORES)
def test_a_sentence_is_translated_alike_alone_and_among_longer_ones(score: str) -> None:
    model = stirred(score)
    with torch.no_grad():
        together = model(SOURCE, READ)
        for row in range(4):
            s, t = int((SOURCE[row] != 0).sum()), int((READ[row] != 0).sum())
            alone = model(SOURCE[row : row + 1, :s], READ[row : row + 1, :t])
            assert torch.allclose(together[row, :t], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_what_stands_at_padded_places_changes_nothing(score: str) -> None:
    plain, broken, inside = (stirred(score, tied=False) for _ in range(3))
    with torch.no_grad():
        broken.source_embedding.token.weight[0] = torch.nan
        broken.target_embedding.token.weight[0] = torch.nan
    embed = inside._embed
    inside._embed = lambda embedding, tokens: embed(embedding, tokens).masked_fill((tokens == 0)[..., None], torch.nan)
    real = EXPECTED != 0
    with torch.no_grad():
        expected = plain(SOURCE, READ)[real]
        assert torch.equal(broken(SOURCE, READ)[real], expected)
        assert torch.equal(inside(SOURCE, READ)[real], expected)


@pytest.mark.parametrize("score", ["dot", "general"])
def test_backends_agree_on_loss_and_gradients(score: str) -> None:
    def run(backend: str) -> list[Tensor]:
        model = stirred(score, backend=backend)
        value = loss(model)
        value.backward()
        return [value.detach(), *(parameter.grad for parameter in model.parameters())]

    for one, other in zip(run("naive"), run("flash"), strict=True):
        assert torch.allclose(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("score", SCORES)
def test_the_source_reaches_the_output_and_the_future_does_not(score: str) -> None:
    model = stirred(score)
    changed = READ.clone()
    changed[1, 3] = 9 if READ[1, 3] != 9 else 10
    other = SOURCE.clone()
    other[1, 0] = 9 if SOURCE[1, 0] != 9 else 10
    with torch.no_grad():
        before = model(SOURCE, READ)[1]
        moved = (model(SOURCE, changed)[1] - before).abs().amax(-1) > 1e-9
        assert moved.tolist() == [False] * 3 + [True] * 3
        assert ((model(other, READ)[1] - before).abs().amax(-1) > 1e-9).all()


def test_one_step_by_hand() -> None:
    """Width 2, dot: states that ask, states that answer, and both combined."""
    model = stirred("dot", width=2, depth=1, vocab_size=6)
    memory = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]).double()
    mask = model.start(torch.tensor([[4, 2]])).memory_mask
    x, state = torch.ones(1, 1, 2).double(), torch.zeros(1, 1, 2).double()
    with torch.no_grad():
        asked, _ = model.decoder.rnn(x, state)
        found, _ = model.decoder(x, state, memory, mask)
        a, b = asked[0, 0]
        weights = torch.stack([a, 2 * b]).softmax(0)
        context = torch.stack([weights[0], 2 * weights[1]])
        combine = model.decoder.combine
        expected = torch.tanh(combine.weight @ torch.cat([context, asked[0, 0]]) + combine.bias)
    assert torch.allclose(found[0, 0], expected)


def test_parameters_differ_by_the_score_alone() -> None:
    # Width 16, two layers; a GRU direction has 3 gates of (inputs + states) weights and two biases.
    def gru(inputs: int, states: int) -> int:
        return 3 * states * (inputs + states + 2)

    shared = 17 * 16 + 2 * 2 * gru(16, 8) + (16 * 16 + 16) + 2 * gru(16, 16)
    combine = 16 * 16 + 16
    assert parameter_count(untouched("none")) == shared + combine
    attended = shared + combine + 16 * 16
    assert parameter_count(untouched("dot")) == attended
    assert parameter_count(untouched("general")) == attended + 16 * 16
    assert parameter_count(untouched("additive")) == attended + 2 * 16 * 16 + 16
    assert parameter_count(untouched("dot", tied=False)) == attended + 2 * 17 * 16


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("tied", [True, False])
def test_it_learns_one_batch_by_heart(score: str, tied: bool) -> None:
    model = untouched(score, tied=tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(200):
        value = loss(model)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    assert value.item() < 0.1
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.parametrize("score", SCORES)
def test_its_map_is_one_cross_attention_with_one_head(score: str) -> None:
    model = stirred(score)
    if score == "none":
        assert not sites(model)
        return
    with torch.no_grad(), capture(model, scores=True) as maps:
        model(SOURCE, READ)
    (found,) = maps.values()
    assert (found.site, found.kind, found.layer, found.heads) == ("decoder.cross.attend", "cross", 0, (0,))
    assert found.error < 1e-10
    words = {
        "dot": "dot product",
        "general": "general (query W key)",
        "additive": "additive (v tanh(Wq query + Wk key))",
    }
    assert found.score == words[score]
    assert found.example(1)[0].shape == (1, 6, 3)


def test_dropout_acts_in_training_only() -> None:
    model = stirred(dropout=0.5)
    assert torch.equal(model(SOURCE, READ), model(SOURCE, READ))
    model.train()
    assert not torch.equal(model(SOURCE, READ), model(SOURCE, READ))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"depth": 0}, "model.depth=0; it must be at least 1"),
        ({"width": 15}, "model.width=15; it must be even"),
        ({"dropout": -0.1}, "model.dropout=-0.1"),
        ({"score": "concat"}, "model.score=concat is not known; use none, additive, dot or general"),
        ({"backend": "flash"}, "attention=flash computes scaled dot products, .* additive .*: use attention=naive"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_refusals(changes: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        untouched("additive", **changes)


def test_what_a_backend_cannot_do_is_said_before_training() -> None:
    cpu = torch.device("cpu")
    with pytest.raises(UserError, match="attention=flex cannot train on a CPU"):
        untouched("dot", backend="flex").check_device(cpu, torch.float32, training=True)
    for kind in SCORES:
        untouched(kind).check_device(cpu, torch.float32, training=True)
