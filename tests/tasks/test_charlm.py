"""The character task: losses weighted by what they are the mean of, and answers as the model reads the question."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from triptych.attention import Attend
from triptych.data.batches import TextBatch
from triptych.data.tokenizers import CharacterTokenizer
from triptych.errors import UserError
from triptych.models.charlm import CharLM
from triptych.tasks.charlm import CharLMTask


def task(vocab_size: int = 5) -> CharLMTask:
    torch.manual_seed(0)
    model = CharLM(
        vocab_size=vocab_size,
        context=8,
        depth=1,
        width=8,
        heads=2,
        kv_heads=None,
        feed_forward=16,
        activation="gelu",
        positions="rotary",
        qk_norm=False,
        tied=False,
        dropout=0.0,
        attention=lambda **kind: Attend(backend="naive", **kind),
    )
    nn.init.normal_(model.predict.weight)
    return CharLMTask(model=model, optimizer=never, scheduler=never, compiled=False)


def never(*args: Any) -> Any:
    raise AssertionError("nothing is trained here")


def batch(rows: int, length: int) -> TextBatch:
    return TextBatch(tokens=torch.randint(5, (rows, length)), targets=torch.randint(5, (rows, length)))


@pytest.mark.usefixtures("unchecked")
def test_the_loss_of_a_split_weights_unequal_batches_by_their_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of batch means would let the short last window count as much as a full batch."""
    each, logged = task().eval(), {}
    monkeypatch.setattr(each, "log", lambda name, value: logged.update({name: float(value)}))
    batches = [batch(4, 8), batch(4, 8), batch(1, 3)]
    total, count = 0.0, 0
    with torch.inference_mode():
        for index, one in enumerate(batches):
            each.test_step(one, index)
            for row, targets in zip(each.model(one.tokens).log_softmax(-1), one.targets, strict=True):
                total -= float(row.gather(1, targets[:, None]).sum())
                count += len(targets)
    each.log_split("test")
    assert logged["test/loss"] == pytest.approx(total / count, rel=1e-6)
    assert logged["test/bits_per_character"] == pytest.approx(total / count / math.log(2), rel=1e-6)
    assert logged.keys() == {"test/loss", "test/bits_per_character"}
    each.test_step(batches[0], 0)  # counting began anew
    assert float(each.mean_loss("test").compute()) != pytest.approx(total / count)


def test_the_loss_is_in_float32_nats() -> None:
    uniform = torch.zeros(2, 3, 5, dtype=torch.bfloat16)
    loss, count = task().loss(uniform, batch(2, 3))
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(math.log(5))
    assert count == 6


class Text:
    """As much of CharacterData as an answer needs."""

    tokenizer = CharacterTokenizer.train("abcd")


@pytest.mark.usefixtures("unchecked")
def test_an_answer_never_holds_the_replacement_and_an_echo_shows_it() -> None:
    each, data = task(), Text()
    with torch.no_grad():
        each.model.predict.weight[0] += 100  # the replacement is by far the most likely
    options: dict[str, Any] = {"temperature": 1.0, "top_k": None, "top_p": None, "seed": 0}
    pieces = list(each.predict(data, "ab?", length=50, **options))  # type: ignore[arg-type]
    assert len(pieces) == 50
    assert set(pieces) <= set("abcd")
    assert each.echo(data, "ab?c") == "ab\N{REPLACEMENT CHARACTER}c"  # type: ignore[arg-type]


def test_wrong_options_of_samples_are_named_as_the_user_wrote_them() -> None:
    with pytest.raises(UserError, match=r"^sample\.length=0"):
        task().check_sample(length=0, temperature=1.0)


def test_a_compiled_copy_adds_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and maps use the model itself; registered twice, it would be saved under two names."""
    monkeypatch.setattr(torch, "compile", lambda model: nn.Sequential(model))
    plain, model = task(), task().model
    compiled = CharLMTask(model=model, optimizer=never, scheduler=never, compiled=True)
    assert compiled.running is not compiled.model
    assert compiled.state_dict().keys() == plain.state_dict().keys()


def test_random_state_travels_as_plain_tensors() -> None:
    checkpoint: dict[str, Any] = {}
    one, other = task(), task()
    one.seen = 123
    torch.manual_seed(5)
    one.on_save_checkpoint(checkpoint)
    wanted = torch.rand(3)
    assert isinstance(checkpoint["random_state"]["cpu"], Tensor)
    torch.manual_seed(99)
    other.on_load_checkpoint(checkpoint)
    torch.rand(7)  # whatever draws between loading and the first batch
    other.on_train_start()
    assert torch.equal(torch.rand(3), wanted)
    assert other.seen == 123
