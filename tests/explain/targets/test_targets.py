"""What is taken away is exactly what was asked for, and the output stays the one that was asked about."""

import re
from typing import Any

import pytest
import torch
from subjects_of import RECURRENT, subject_of, task_and_data

from triptych.data.tokenizers import PAD_ID, UNKNOWN_ID
from triptych.errors import UserError
from triptych.explain.targets import subject as module
from triptych.explain.targets.images import ImageSubject
from triptych.explain.targets.pairs import PairSubject
from triptych.explain.targets.registry import Question, examples, subjects
from triptych.explain.targets.texts import TextSubject
from triptych.maps.capture import probing

TASKS = ["vit", "charlm", "translation"]


class Seen(torch.nn.Module):
    """Stands in for a model: keeps what it was given, answers two even logits."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[torch.Tensor] = []

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        self.inputs += inputs
        shape = inputs[0].shape[:2] if inputs[0].dim() == 2 else inputs[0].shape[:1]
        return torch.zeros(*shape, 2)

    def hidden(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.inputs += [source, target]
        return torch.zeros(*target.shape, 3)

    def predict(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[..., :2]


def removing(subject: Any, *units: int) -> torch.Tensor:
    removed = torch.zeros(len(subject), 1, subject.size, dtype=torch.bool)
    removed[..., list(units)] = True
    return removed


@pytest.mark.parametrize("name", TASKS)
def test_with_nothing_removed_it_is_the_probability_of_the_models_own_answer(name: str) -> None:
    subject, (task, _) = subject_of(name), task_and_data(name)
    with probing(task.model) as model:
        shares = subject.logits(model).softmax(-1)
        found = subject.probability(model, removing(subject), "deletion")
    assert torch.allclose(found[:, 0], shares.amax(-1), atol=1e-5)
    assert subject.target.tolist() == shares.argmax(-1).tolist()
    assert subject.outputs == [subject.in_words(index) for index in subject.target.tolist()]
    assert all(len(names) == subject.size for names in subject.units)


@pytest.mark.parametrize("name", TASKS)
def test_sets_of_different_examples_do_not_mix(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks of two or in one: row b, n is example b without set n."""
    subject, (task, _) = subject_of(name), task_and_data(name)
    removed = torch.rand(len(subject), 5, subject.size, generator=torch.Generator().manual_seed(0)) < 0.4
    with probing(task.model) as model:
        whole = subject.probability(model, removed, "deletion")
        one_by_one = [
            subject.changed(model, removed[b, n : n + 1], torch.tensor([b]), "deletion").softmax(-1)[0, target]
            for b, target in enumerate(subject.target.tolist())
            for n in range(5)
        ]
        monkeypatch.setattr(module, "CHUNK", 2)
        chunked = subject.probability(model, removed, "deletion")
    assert torch.allclose(whole.flatten(), torch.stack(one_by_one), atol=1e-5)
    assert torch.allclose(chunked, whole, atol=1e-5)


def test_a_removed_patch_is_the_mean_pixel_or_blur_and_its_neighbours_stay() -> None:
    subject = subject_of("vit")
    assert isinstance(subject, ImageSubject)
    seen = Seen()
    subject.target = torch.zeros_like(subject.target)
    subject.probability(seen, removing(subject, 5), "deletion")  # second row, second column of patches of 2 pixels
    subject.probability(seen, removing(subject, 5), "insertion")
    gone = torch.zeros(8, 8, dtype=torch.bool)
    gone[2:4, 2:4] = True
    deleted, blurred = seen.inputs
    assert torch.equal(deleted[:, :, ~gone], subject.images[:, :, ~gone])
    assert torch.equal(blurred[:, :, ~gone], subject.images[:, :, ~gone])
    assert not deleted[:, :, gone].any()  # 0 is the mean pixel of the training images
    assert torch.equal(blurred[:, :, gone], subject.blurred[:, :, gone])
    assert subject.blurred.std() < 0.8 * subject.images.std()


def test_a_removed_character_becomes_unknown_in_its_place() -> None:
    subject = subject_of("charlm")
    assert isinstance(subject, TextSubject)
    seen = Seen()
    subject.target = torch.zeros_like(subject.target)
    subject.probability(seen, removing(subject, 3), "insertion")
    expected = subject.tokens.clone()
    expected[:, 3] = UNKNOWN_ID
    assert torch.equal(seen.inputs[0], expected)


def test_a_removed_word_is_all_of_its_subwords_and_the_end_token_stays() -> None:
    subject = subject_of("translation")
    assert isinstance(subject, PairSubject)
    word = int(subject.words[0, 0])
    seen = Seen()
    subject.target = torch.zeros_like(subject.target)
    subject.probability(seen, removing(subject, word), "deletion")
    assert torch.equal(seen.inputs[0] == PAD_ID, subject.words == word)
    everything = Seen()
    subject.probability(everything, removing(subject, *range(subject.size)), "deletion")
    assert torch.equal(everything.inputs[0] != PAD_ID, subject.words < 0)


def test_a_recurrent_model_reads_what_is_left_without_a_gap() -> None:
    subject, (task, _) = subject_of("translation", 1, RECURRENT), task_and_data("translation", RECURRENT)
    assert isinstance(subject, PairSubject)
    removed = removing(subject, 0)
    with probing(task.model) as model:
        found = subject.probability(model, removed, "deletion")
        kept = torch.stack([source[words != 0] for source, words in zip(subject.source, subject.words, strict=True)])
        hidden = model.hidden(kept, subject.targets)[torch.arange(len(subject)), subject.rows]  # type: ignore[operator]
        expected = model.predict(hidden).softmax(-1)  # type: ignore[operator]
    assert torch.allclose(found[:, 0], expected[torch.arange(len(subject)), subject.target], atol=1e-5)


def test_scores_of_subwords_add_up_to_their_words() -> None:
    subject = subject_of("translation", 1)
    assert isinstance(subject, PairSubject)
    subject.words = torch.tensor([[0, 0, 1, -1]])
    subject.units = [["two", "words"]]
    assert torch.allclose(subject.at_units(torch.tensor([[0.1, 0.2, 0.4, 0.3]])), torch.tensor([[0.3, 0.4]]))


def test_the_output_is_read_from_its_own_rows() -> None:
    """CLS's row, the mean of the patches' where there is no CLS, the last character's, the row that emits the word."""
    cls, mean = subject_of("vit", 1), subject_of("vit", 1, "model.pooling=mean", "model.registers=1")
    matrix = torch.arange(17 * 17, dtype=torch.float).view(1, 17, 17)
    assert torch.equal(cls.read(matrix), matrix[:, 0])
    assert torch.equal(mean.read(matrix), matrix[:, 1:].mean(1))
    assert cls.query_rows == [0]
    assert mean.query_rows == list(range(1, 17))
    assert cls.at_units(cls.read(matrix)).shape == (1, 16)
    text = subject_of("charlm", 1)
    assert text.query_rows == [11]
    pair = subject_of("translation", 1)
    assert isinstance(pair, PairSubject)
    pair.rows = torch.tensor([2])
    assert torch.equal(pair.read(matrix), matrix[:, 2])
    assert torch.equal(pair.read_row(matrix, 1), matrix[:, 3])


def test_every_word_of_a_sentence_is_an_output_of_its_own() -> None:
    task, data = task_and_data("translation")
    probe = data.pair("two plus three is big", "zwei und drei ist viel")
    (subject,) = subjects(task, data, [probe])
    assert isinstance(subject, PairSubject)
    assert subject.units[0] == ["two", "plus", "three", "is", "big"]
    assert len(subject) == 5
    assert subject.examples == ["two plus three is big"] * 5
    output = probe.words["output"]
    assert [output[row] for row in subject.rows.tolist()] == [0, 1, 2, 3, 4]
    (asked,) = subjects(task, data, [probe], Question(about="drei"))
    (numbered,) = subjects(task, data, [probe], Question(about="2"))
    assert isinstance(asked, PairSubject)
    assert isinstance(numbered, PairSubject)
    assert asked.rows.tolist() == numbered.rows.tolist() == subject.rows[2:3].tolist()


def test_another_output_can_be_asked_about() -> None:
    assert subject_of("vit", 2, about="7").outputs == ["7", "7"]
    assert subject_of("charlm", 2, about="e").outputs == ["e", "e"]
    subject, (task, _) = subject_of("vit"), task_and_data("vit")
    with probing(task.model) as model:
        order = subject.logits(model).argsort(-1, descending=True)
        assert torch.equal(subject.runner_up(model), order[:, 1])


@pytest.mark.parametrize(
    ("name", "about", "why"),
    [
        ("vit", "10", "about=10 is no class; there are 10, from 0: 0, 1"),
        ("vit", "cat", "about=cat is no class"),
        ("charlm", "ab", "about=ab must be one character"),
        ("charlm", "漢", "about=漢 must be one character that the training text has"),
        ("translation", "xyz", "about=xyz is no word of the translation; it has, from 0: "),
    ],
)
def test_an_output_that_does_not_exist_is_refused(name: str, about: str, why: str) -> None:
    with pytest.raises(UserError, match=re.escape(why)):
        subject_of(name, 1, about=about)


def test_inputs_that_are_none_are_refused() -> None:
    task, data = task_and_data("charlm")
    with pytest.raises(UserError, match="input= has 13 characters, and this model reads 12 at most"):
        task.inputs(data, "a" * 13)
    with pytest.raises(UserError, match="input= is empty"):
        task.inputs(data, "")
    for options, why in (({"split": "train"}, "split=train"), ({"count": 0}, "n=0")):
        with pytest.raises(UserError, match=why):
            examples(task, data, **{"split": "test", "count": 1, **options})  # type: ignore[arg-type]
