"""The translator's task: loss per real token, scores by hand, one batch learned by heart, files, and whole runs."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from omegaconf import DictConfig

from triptych.errors import UserError
from triptych.maps import record
from triptych.runs import metrics_rows

Compose = Callable[..., DictConfig]
TRANSFORMER = (
    "model.encoder_depth=1",
    "model.decoder_depth=2",
    "model.heads=2",
    "model.feed_forward=64",
    "model.dropout=0",
)
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]


def built(config: DictConfig) -> tuple[Any, Any]:
    """A task with its model, and opened data."""
    from triptych.config import build

    data = build.build_data(config)
    data.open()
    return build.build_task(config, build.build_model(config, data.sizes), compiled=False), data


def test_the_loss_counts_real_tokens_and_smooths_in_training_only(compose_translation: Compose) -> None:
    task, data = built(compose_translation(*TRANSFORMER, "task.label_smoothing=0.2"))
    batch = data.batch_of(["one plus two", "one"], ["eins und zwei", "eins"])
    assert batch.expected[1, -1] == 0, "the second pair is shorter, so it is padded"
    V = task.model.vocab_size
    logits = torch.randn(*batch.target.shape, V)
    count = int((batch.expected != 0).sum())
    rows = [(row, place) for row in range(2) for place in range(batch.target.shape[1]) if batch.expected[row, place]]
    nats = [-logits[row, place].log_softmax(-1) for row, place in rows]
    plain = sum(each[batch.expected[row, place]] for each, (row, place) in zip(nats, rows, strict=True)) / count
    uniform = sum(each.mean() for each in nats) / count

    loss, counted = task.eval().loss(logits, batch)
    assert counted == count == batch.seen
    torch.testing.assert_close(loss, plain)
    smoothed, _ = task.train().loss(logits, batch)
    torch.testing.assert_close(smoothed, 0.8 * plain + 0.2 * uniform)


@pytest.mark.parametrize("model", ["transformer", "none", "additive", "dot", "general"])
def test_one_batch_is_learned_by_heart(compose_translation: Compose, model: str, one_thread: None) -> None:
    """And decoded to BLEU 100, so that search and training agree on what comes after what."""
    from triptych.tasks.translation_metrics import score

    recurrent = ["model=rnn_translator", "attention=naive", f"model.score={model}", "model.dropout=0"]
    options = TRANSFORMER if model == "transformer" else recurrent
    task, data = built(compose_translation(*options, "task.label_smoothing=0", "optimizer=adamw", "optimizer.lr=1e-2"))
    texts = list(dict.fromkeys(data.texts("train")))[:16]
    sources, targets = [source for source, _ in texts], [target for _, target in texts]
    batch = data.batch_of(sources, targets)
    optimizer = task.optimizer(task.model)
    task.train()
    for _ in range(1500):
        loss, _ = task.loss(task.logits(task.model, batch), batch)
        if loss.item() < 0.02:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.02
    for size in (1, 3):
        found = task.eval().translate(data, sources, size=size, length_penalty=1.0, best=1)
        assert score([best[0][0] for best in found], sources, targets).numbers["bleu"] == pytest.approx(100)


def test_scores_of_hand_made_translations() -> None:
    from triptych.tasks.translation_metrics import score

    found = score(["the cat sat down", "Le chat dort ici"], ["a", "b"], ["the cat sat down", "le chat dort là"])
    assert found.numbers["exact_match"] == 0.5
    # 1-grams 4 + 2 of 8, 2-grams 3 + 1 of 6, 3-grams 2 of 4, 4-grams 1 of 2; both as long as their references.
    by_hand = 100 * (6 / 8 * 4 / 6 * 2 / 4 * 1 / 2) ** 0.25
    assert found.numbers["bleu"] == pytest.approx(by_hand)
    lower = 100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** 0.25
    assert found.numbers["bleu_lowercase"] == pytest.approx(lower)
    assert "tok:13a" in found.signatures["bleu"]
    assert "case:lc" in found.signatures["bleu_lowercase"]
    assert "bleu_all_references" not in found.numbers, "every source has one reference"


def test_several_references_of_a_source_count_together() -> None:
    from triptych.tasks.translation_metrics import score

    hypotheses = ["I can not see you", "I can not see you", "who are you then"]
    sources = ["je ne te vois pas", "je ne te vois pas", "qui es tu"]
    found = score(hypotheses, sources, ["I do not see you", "I can not see you", "who are you then"])
    assert found.numbers["bleu_all_references"] == pytest.approx(100), "the second reference is what was written"
    assert found.numbers["bleu"] < 90
    assert found.numbers["exact_match"] == pytest.approx(2 / 3)


def test_blanks_do_not_decide_whether_translations_are_the_same() -> None:
    from triptych.tasks.translation_metrics import score

    assert score(["10 km"], ["x"], ["10\u202fkm "]).numbers["exact_match"] == 1


def test_a_run_learns_to_translate_and_align(translator: Path) -> None:
    summary = json.loads((translator / "summary.json").read_text(encoding="utf-8"))
    metrics = summary["metrics"]
    assert summary["status"] == "finished"
    assert summary["seen"]["unit"] == "tokens"
    assert metrics["test/exact_match"] >= 0.9
    assert metrics["test/bleu"] >= 90
    assert metrics["test/perplexity"] == pytest.approx(math.exp(metrics["test/loss"]), rel=1e-4)
    assert metrics["test/aer"] <= 0.35
    assert 0 <= metrics["test/alignment_recall"] <= 1
    assert "lowest error rate on validation" in summary["notes"]["alignment"]
    assert "tok:13a" in summary["notes"]["bleu"]
    rows = metrics_rows.read(translator / "metrics.csv")
    assert {"val/bleu", "val/aer", "val/diagonality", "val/coverage"} <= {name for row in rows for name in row}
    for picture in ("alignment.png", "maps/step-00000150-alignment.png"):
        assert (translator / picture).read_bytes().startswith(b"\x89PNG")


def test_maps_say_which_words_meet_in_which_operation(translator: Path) -> None:
    records = record.load(translator / "maps" / "step-00000150.safetensors")
    kinds = {(each.operation, each.site.split(".")[0]) for each in records}
    assert kinds == {
        ("bidirectional self-attention", "encoder"),
        ("causal self-attention", "decoder"),
        ("cross-attention", "decoder"),
    }
    for each in records:
        if each.kind == "cross":
            assert each.query_labels[-1] == "</s>", "a row is called by the token that it leads to"
            assert each.query_labels[0] != "<s>"
            assert each.key_labels[-1] == "</s>"
        elif each.site.startswith("decoder"):
            assert each.query_labels[0] == "<s>", "the decoder reads the start token first"
        assert each.capture_error < 1e-5
        torch.testing.assert_close(each.weights.sum(-1), torch.ones(each.weights.shape[:2]))


def predict(capsys: pytest.CaptureFixture[str], **options: Any) -> str:
    from hydra import compose, initialize_config_dir

    from triptych.commands.cli import CONF
    from triptych.commands.predict import predict

    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("predict")
    for name, value in options.items():
        config[name] = value
    capsys.readouterr()
    predict(config)
    return capsys.readouterr().out


def test_predict_translates_sentences_and_lists_several(translator: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(translator)
    assert predict(capsys, run=run, input="two plus one is big") == "zwei und eins ist viel\n"
    assert predict(capsys, run=run, input="two plus one is big\n\none plus four is big") == (
        "zwei und eins ist viel\n\neins und vier ist viel\n"
    )
    several = predict(capsys, run=run, input="two plus one is big", n_best=3, beam=4).splitlines()
    scores = [float(line.split()[0]) for line in several]
    assert len(several) == 3
    assert scores == sorted(scores, reverse=True)
    assert several[0].split(maxsplit=1)[1] == "zwei und eins ist viel"


def test_predict_translates_a_file_line_by_line(
    translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{a} plus {b} is big" for a in NUMBERS for b in NUMBERS]
    lines[40] = ""  # an empty line stays one, and the others keep their places
    given, written = tmp_path / "in.txt", tmp_path / "new folder" / "out.txt"
    given.write_text("\n".join(lines) + "\n", encoding="utf-8")
    predict(capsys, run=str(translator), input=str(given), output=str(written), beam=1)
    answers = written.read_text(encoding="utf-8").split("\n")
    assert len(answers) == 82
    assert answers[40] == answers[81] == ""
    assert answers[10] == "zwei und zwei ist viel"
    alone = predict(capsys, run=str(translator), input=lines[70], beam=1)
    assert answers[70] + "\n" == alone, "alone or among others, the translation is the same"


def test_predict_draws_the_alignment_of_a_given_translation(
    translator: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"run": str(translator), "input": "two plus one is big", "output": str(tmp_path / "maps")}
    predict(capsys, **options, maps={"draw": True}, reference="zwei und neun ist viel")
    drawn = sorted(path.name for path in (tmp_path / "maps").rglob("*.png"))
    assert any("alignment" in name for name in drawn)
    (saved,) = (tmp_path / "maps").rglob("*.safetensors")
    crossing = [each for each in record.load(saved) if each.kind == "cross"]
    assert "".join(crossing[0].query_labels).replace("▁", " ") == " zwei und neun ist viel</s>"
    (page,) = (tmp_path / "maps").rglob("report.html")
    assert "two plus one" in page.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"beam": 0}, "beam=0; it must be at least 1"),
        ({"beam": 100_000}, "beam=100000 is larger than the vocabulary of"),
        ({"n_best": 6}, "n_best=6; it must be at least 1 and at most the beam"),
        ({"length_penalty": -1.0}, "length_penalty=-1.0; it must be at least 0"),
        ({"input": "one plus " * 200}, "tokens, and this model takes"),
        ({"reference": "a", "input": "one\ntwo", "maps": {"draw": True}}, "reference= goes with one sentence"),
    ],
)
def test_predict_refuses(
    translator: Path, tmp_path: Path, options: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=said):
        predict(capsys, **{"run": str(translator), "input": "one", "output": str(tmp_path / "out"), **options})
    assert not (tmp_path / "out").exists()


def test_a_character_never_seen_is_named_and_the_rest_translated(
    translator: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    assert predict(capsys, run=str(translator), input="one plus 雪").strip()
    assert "雪" in caplog.text


def test_options_out_of_range_are_refused_before_training(compose_translation: Compose) -> None:
    for option, said in (
        ("task.label_smoothing=1.0", "task.label_smoothing=1.0; it must be"),
        ("task.beam=0", "task.beam=0; it must be at least 1"),
        ("task.length_penalty=-2.0", "task.length_penalty=-2.0"),
        ("sample.sentences=0", "sample.sentences=0; it must be at least 1"),
    ):
        config = compose_translation(*TRANSFORMER, option)
        with pytest.raises(UserError, match=said):
            built(config)[0].check_sample(**config.sample)


def test_padding_is_no_part_of_the_loss(compose_translation: Compose) -> None:
    """The same pair alone and beside a longer one: the same sum of nats."""
    task, data = built(compose_translation(*TRANSFORMER))
    torch.nn.init.normal_(task.model.predict.weight)
    short, long = ("one", "eins"), ("one plus two plus three", "eins und zwei und drei")
    both = data.batch_of([short[0], long[0]], [short[1], long[1]])
    sums = []
    for pair in (short, long):
        batch = data.batch_of([pair[0]], [pair[1]])
        loss, count = task.eval().loss(task.logits(task.model, batch), batch)
        sums.append(loss * count)
    loss, count = task.loss(task.logits(task.model, both), both)
    torch.testing.assert_close(loss * count, sum(sums), rtol=1e-5, atol=1e-5)
    assert F.relu(loss) > 0


@pytest.mark.parametrize(
    ("locale", "tokenizer"),
    [
        *(("zh_Hans_CN", "zh"), ("zho", "zh"), ("yue", "zh"), ("wuu", "zh"), ("ZH-tw", "zh")),
        *(("ja", "ja-mecab or char"), ("jpn", "ja-mecab or char"), ("ko_KR", "ko-mecab or char")),
        *(("th", "char"), ("lo_LA", "char"), ("km", "char"), ("my", "char"), ("tha", "char")),
        *(("en", "13a"), ("pt_BR", "13a"), ("fra", "13a"), ("target", "13a"), ("", "13a")),
    ],
)
def test_words_are_told_apart_as_the_target_language_needs_it(
    locale: str, tokenizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Japanese and Korean by a morphological analyser where its package is installed, else by characters."""
    from triptych.tasks import translation_metrics as metrics

    analyser, _, without = tokenizer.partition(" or ")
    for installed, wanted in ((True, analyser), (False, without or analyser)):
        monkeypatch.setattr(metrics, "installed", lambda module, there=installed: there)
        assert metrics.tokenizer_for("auto", locale) == wanted
        assert metrics.tokenizer_for("intl", locale) == "intl"


@pytest.mark.parametrize("tokenizer", ["zh", "char"])
def test_a_slip_in_a_sentence_without_blanks_leaves_the_rest_right(tokenizer: str) -> None:
    from triptych.tasks.translation_metrics import score

    told = (["我昨天去了北京大学。"], ["a"], ["我昨天去了北京大學。"])
    assert score(*told).numbers["bleu"] == 0, "the whole sentence is one word"
    found = score(*told, tokenizer=tokenizer)
    assert found.numbers["bleu"] > 70
    assert found.numbers["chrf"] == score(*told).numbers["chrf"]
    assert {f"tok:{tokenizer}" in found.signatures[name] for name in ("bleu", "bleu_lowercase")} == {True}


def test_all_references_are_told_apart_alike() -> None:
    from triptych.tasks.translation_metrics import score

    found = score(["你好吗朋友", "你好吗朋友"], ["a", "a"], ["你好吗亲", "你好吗朋友们"], tokenizer="zh")
    assert found.numbers["bleu_all_references"] > 50
    assert "tok:zh" in found.signatures["bleu_all_references"]


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        ("nonsense", "it must be auto, 13a, intl, zh, ja-mecab, ko-mecab, char or none"),
        *((name, "sacrebleu would download its model") for name in ("spm", "flores101", "flores200", "spBLEU-1K")),
        ("ja-mecab", r'pip install "sacrebleu\[ja\]"'),
        ("ko-mecab", r'pip install "sacrebleu\[ko\]"'),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused_before_training(
    compose_translation: Compose, tokenizer: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triptych.tasks import translation_metrics as metrics

    monkeypatch.setattr(metrics, "installed", lambda module: False)
    with pytest.raises(UserError, match=f"task.bleu_tokenizer={tokenizer} .*{said}|{said}"):
        built(compose_translation(*TRANSFORMER, f"task.bleu_tokenizer={tokenizer}"))


def test_no_tokenizer_of_sacrebleu_is_forgotten() -> None:
    from sacrebleu.metrics import BLEU

    from triptych.tasks.translation_metrics import DOWNLOADED, TOKENIZERS

    assert set(TOKENIZERS) | set(DOWNLOADED) >= set(BLEU.TOKENIZERS)


def test_a_run_is_scored_as_its_language_needs_it(
    compose_translation: Compose, tmp_path: Path, one_thread: None
) -> None:
    """From the setting and the locale to the signature in the notes, and to the table by lengths."""
    from triptych.callbacks import lengths
    from triptych.commands.train import train

    options = (*TRANSFORMER, "trainer.max_steps=4", "validations=1", "maps=none", f"runs={tmp_path}")
    run = train(compose_translation(*options, "data.target_locale=zh_Hans"))
    assert "tok:zh" in run.summary()["notes"]["bleu"]
    assert lengths._tokenizer(run) == "zh"
    assert lengths.table([("zh", run)]).row_count == 1
    run = train(compose_translation(*options, "data.target_locale=zh_Hans", "task.bleu_tokenizer=char"))
    assert "tok:char" in run.summary()["notes"]["bleu"]


def test_lines_of_a_file_end_where_an_editor_ends_them(tmp_path: Path) -> None:
    from triptych.tasks.translation import lines_of

    path = tmp_path / "in.txt"
    path.write_bytes("one\r\ntwo\u2028still two\x0c\x85\rstill two\n\nfour\n".encode())
    expected = ["one", "two\u2028still two\x0c\x85\rstill two", "", "four"]
    assert lines_of(str(path)) == expected
    assert lines_of("one\r\ntwo\u2028still two") == ["one", "two\u2028still two"]
