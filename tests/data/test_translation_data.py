"""Sentence pairs: filtered and counted, every pair once per epoch in batches with little padding, and bad input."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from triptych.data.pairs import EvaluationPairs, Pairs, Sentences, TrainingPairs
from triptych.data.tokenizers import END_ID, PAD_ID, START_ID, words
from triptych.data.translation import TranslationData
from triptych.errors import UserError

LETTERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
HELD_OUT = [("one two", "two one."), ("ten", "ten ten"), ("four five six", "six four")]


def many(count: int = 60) -> list[tuple[str, str]]:
    chance = random.Random(0)
    pairs = []
    for _ in range(count):
        source = chance.choices(LETTERS, k=chance.randint(1, 8))
        pairs.append((" ".join(source), " ".join(reversed(source)) + "."))
    return pairs


def write(folder: Path, **splits: Sequence[object]) -> str:
    """Rows as jsonl files in a folder: pairs as two columns a and b, dictionaries as they are."""
    folder.mkdir(exist_ok=True)
    for split, rows in splits.items():
        lines = [json.dumps(dict(zip("ab", row, strict=True)) if isinstance(row, tuple) else row) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(folder)


def data_on(path: str, **options: object) -> TranslationData:
    fixed = {
        "source": "pairs",
        "path": path,
        "config": None,
        "revision": None,
        "files": None,
        "columns": {"source": "a", "target": "b"},
        "splits": {"train": "train", "validation": "validation", "test": "test"},
        "source_locale": "en",
        "target_locale": "fr",
        "vocab_size": 300,
        "max_length": 40,
        "max_length_ratio": 2.0,
        "identical": "drop",
        "batch_tokens": 80,
        "eval_batch_tokens": 80,
        "seed": 0,
        "workers": 0,
        "cast": False,
    }
    return TranslationData(**{**fixed, **options})  # type: ignore[arg-type]


def opened(folder: Path, train: Sequence[object] | None = None, **options: object) -> TranslationData:
    held_out = options.pop("held_out", HELD_OUT)
    assert isinstance(held_out, list)
    data = data_on(write(folder, train=train or many(), validation=held_out, test=held_out[::-1]), **options)
    data.open()
    return data


# Batches


def test_a_batch_by_hand() -> None:
    pairs = Pairs([("", "")] * 3, Sentences([[4, 5], [6], [7, 8, 9]]), Sentences([[10], [11, 12], []]), gold=None)
    batch = pairs.batch(torch.tensor([1, 0]))
    assert batch.source.tolist() == [[6, END_ID, PAD_ID], [4, 5, END_ID]]
    assert batch.target.tolist() == [[START_ID, 11, 12], [START_ID, 10, PAD_ID]]
    assert batch.expected.tolist() == [[11, 12, END_ID], [10, END_ID, PAD_ID]]
    assert batch.rows.tolist() == [1, 0]
    assert batch.seen == 5
    last = pairs.batch(torch.tensor([2]))
    assert (last.target.tolist(), last.expected.tolist()) == ([[START_ID]], [[END_ID]])
    assert {part.dtype for part in (batch.source, batch.target, batch.expected, batch.rows)} == {torch.int64}


def like_captions(count: int = 20_000) -> Pairs:
    """Lengths as a caption and its translation have them; every sentence's tokens are its row number."""
    chance = random.Random(0)
    lengths = [max(2, round(chance.lognormvariate(2.6, 0.35))) for _ in range(count)]
    others = [max(1, round(length * chance.gauss(1.05, 0.2))) for length in lengths]
    sides = [Sentences([[row + 4] * n for row, n in enumerate(side)]) for side in (lengths, others)]
    return Pairs([("", "")] * count, sides[0], sides[1], gold=None)


def test_an_epoch_has_every_pair_once_within_the_budget_and_little_padding() -> None:
    pairs = like_captions()
    training = TrainingPairs(pairs, tokens=2048, seed=0)
    for epoch in range(3):
        rows: list[int] = []
        taken = real = 0
        for k in range(training.per_epoch):
            batch = training.batch(epoch, k)
            assert max(batch.source.numel(), batch.target.numel()) <= 2048
            assert torch.equal(batch.source[:, 0], batch.rows + 4)
            taken += batch.source.numel() + batch.target.numel()
            real += int((batch.source != PAD_ID).sum()) + batch.seen
            rows += batch.rows.tolist()
        assert sorted(rows) == list(range(len(pairs.texts)))
        assert 1 - real / taken < 0.10


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    """Asked backwards, twice, or alone: what a resumed run relies on. Another seed is another order."""
    pairs = like_captions(500)
    forward = TrainingPairs(pairs, tokens=512, seed=1)
    wanted = {(epoch, k): forward.batch(epoch, k).rows for epoch in range(3) for k in range(forward.per_epoch)}
    other = TrainingPairs(pairs, tokens=512, seed=1)
    for epoch, k in [*reversed(wanted), (1, 2), (0, 0), (1, 2)]:
        assert torch.equal(other.batch(epoch, k).rows, wanted[epoch, k])
    alone = TrainingPairs(pairs, tokens=512, seed=2)
    assert not any(torch.equal(alone.batch(0, k).rows, wanted[0, k]) for k in range(3))


@pytest.mark.parametrize(("later", "most"), [(1, 0.25), (2, 0.45)])
def test_other_sentences_meet_in_later_epochs(later: int, most: float) -> None:
    """Of the pairs of sentences that share a batch, few share one again; all would if only batches were shuffled."""
    training = TrainingPairs(like_captions(), tokens=2048, seed=0)
    place = torch.empty(20_000, dtype=torch.long)
    for k in range(training.per_epoch):
        place[training.batch(later, k).rows] = k
    again = met = 0
    for k in range(training.per_epoch):
        counts = place[training.batch(0, k).rows].bincount()
        again += int((counts * (counts - 1)).sum())
        met += int(counts.sum() * (counts.sum() - 1))
    assert again / met < most


def test_batches_come_in_no_order_of_length() -> None:
    training = TrainingPairs(like_captions(), tokens=2048, seed=0)
    widths = [training.batch(0, k).target.shape[1] for k in range(training.per_epoch)]
    assert widths not in (sorted(widths), sorted(widths, reverse=True))
    assert abs(sum(widths[: len(widths) // 2]) / sum(widths) - 0.5) < 0.1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_handful_of_pairs_is_enough(count: int) -> None:
    """Both ways of sorting have the same number of batches, however few pairs there are."""
    pairs = like_captions(count)
    for tokens in (1, 30, 60, 1000):
        training = TrainingPairs(pairs, tokens=tokens, seed=0)
        for epoch in range(2):
            rows = [row for k in range(training.per_epoch) for row in training.batch(epoch, k).rows.tolist()]
            assert sorted(rows) == list(range(count))


def test_evaluation_sees_every_pair_once_the_shortest_first() -> None:
    pairs = like_captions(300)
    batches = EvaluationPairs(pairs, tokens=200)
    assert sorted(row for batch in batches for row in batch.rows.tolist()) == list(range(300))
    lengths = [int(n) for batch in batches for n in (batch.source != PAD_ID).sum(1)]
    assert lengths == sorted(lengths)
    assert all(max(batch.source.numel(), batch.target.numel()) <= 200 for batch in batches)
    alone = EvaluationPairs(pairs, tokens=1)  # each is longer than that
    assert len(alone) == len(list(alone)) == 300


# What the data say


def test_rows_of_batches_are_places_in_texts(tmp_path: Path) -> None:
    data = opened(tmp_path)
    assert data.texts("validation") == HELD_OUT
    loaders = {"train": data.train_dataloader(), "validation": data.val_dataloader(), "test": data.test_dataloader()}
    for split, loader in loaders.items():
        for _, batch in zip(range(len(data.training.pairs.texts)), loader, strict=False):  # type: ignore[attr-defined]
            for row, source, target, expected in zip(
                batch.rows.tolist(), batch.source, batch.target, batch.expected, strict=True
            ):
                assert data.tokenizer.decode(source.tolist()) == data.texts(split)[row][0]
                assert data.tokenizer.decode(target.tolist()) == data.texts(split)[row][1]
                assert data.tokenizer.decode(expected.tolist()) == data.texts(split)[row][1]


def test_pairs_are_filtered_and_counted(tmp_path: Path) -> None:
    train = [
        *many(),
        ("  ", "one"),
        (None, "one"),
        ("one", "\u00a0"),
        ("two two", "two  two"),
        ("one " * 40, "two " * 40),
        ("one two three", "one " * 30),
    ]
    data = opened(tmp_path, train=train, held_out=[*HELD_OUT, ("one " * 60, "one"), ("six", "six"), ("", "one")])
    assert data.report.filtered == {
        "train": {"empty": 3, "identical": 1, "over-long": 1, "unequal": 1},
        "validation": {"empty": 1},
        "test": {"empty": 1},
    }
    assert data.describe() == (
        f"{tmp_path}: en to fr, 60 train, 5 validation, 5 test pairs, {data.tokenizer.size} subwords; "
        "of the validation sources, 3 also in train; of the test sources, 3 also in train; "  # one two; ten; six
        "filtered 3 empty, 1 identical, 1 over-long, 1 unequal from train and 1 empty from validation and 1 empty from "
        "test; read 3 files (train 1, validation 1, test 1), 78 rows (train 66, validation 6, test 6); "
        "read 8 texts with single blanks"
    )
    assert data.texts("test") == [("six", "six"), ("one " * 59 + "one", "one"), *HELD_OUT[::-1]]
    assert data.sizes == {"vocab_size": data.tokenizer.size, "positions": 61}  # the longest of the test, and its end


def test_nothing_to_filter_is_said_and_positions_are_the_longest_allowed(tmp_path: Path) -> None:
    data = opened(tmp_path)
    assert "; nothing filtered" in data.describe()
    assert data.sizes["positions"] == 40


def test_how_long_and_how_unequal_by_hand(tmp_path: Path) -> None:
    """Every word is a token: max_length 12 leaves 11 and the end token; twice as long, and 5 more, is allowed."""
    once = [(f"{word} x", f"{word} y") for word in LETTERS for _ in range(3)]
    train = [*once, ("one " * 11, "one " * 10), ("one " * 12, "one " * 10), ("two", "two " * 7), ("two", "two " * 8)]
    data = opened(tmp_path, train=train, max_length=12)
    assert data.report.filtered["train"] == {"over-long": 1, "unequal": 1}
    assert len(data.texts("train")) == 32


def test_equal_sides_can_be_kept(tmp_path: Path) -> None:
    data = opened(tmp_path, train=[*many(), ("one", "one")], identical="keep")
    assert data.texts("train")[-1] == ("one", "one")
    assert not data.report.filtered


def test_texts_are_composed_with_single_blanks(tmp_path: Path) -> None:
    data = opened(tmp_path, train=[*many(), (" e\u0301te\u0301\n", "Bien\u202fjoué !")])
    assert data.texts("train")[-1] == ("été", "Bien joué !")


def test_the_vocabulary_is_of_both_sides_of_training_only(tmp_path: Path) -> None:
    data = opened(tmp_path, held_out=[*HELD_OUT, ("ß", "one;")])
    known = data.tokenizer.tokenizer.get_vocab()
    assert "." in known  # only in targets
    assert {"ß", ";"}.isdisjoint(known)


def test_fields_of_a_column_and_shares_of_train(tmp_path: Path) -> None:
    """As OPUS Books has its pairs: one column that holds both languages, and one split."""
    from datasets import Dataset, Features, Translation, Value

    rows = {"id": [*map(str, range(60))], "translation": [{"en": source, "fr": target} for source, target in many()]}
    features = Features({"id": Value("string"), "translation": Translation(["en", "fr"])})
    Dataset.from_dict(rows, features).to_parquet(tmp_path / "train.parquet")
    data = data_on(
        str(tmp_path),
        columns={"source": "translation.en", "target": "translation.fr"},
        splits={"train": "train", "validation": 0.1, "test": 0.1},
    )
    data.open()
    assert [len(data.texts(split)) for split in ("train", "validation", "test")] == [48, 6, 6]
    assert set(data.texts("train") + data.texts("validation") + data.texts("test")) == set(many())


def test_a_table_with_an_empty_cell(tmp_path: Path) -> None:
    lines = ["a\tb", *("\t".join(pair) for pair in many()), "one\t"]
    (tmp_path / "pairs.tsv").write_text("\n".join(lines) + "\n")
    data = data_on(str(tmp_path / "pairs.tsv"), splits={"train": "train", "validation": 0.1, "test": 0.1})
    data.open()
    assert sum(reasons["empty"] for reasons in data.report.filtered.values()) == 1
    assert sum(len(data.texts(split)) for split in ("train", "validation", "test")) == 60


# Known alignments

ALIGNED = {"source": "a", "target": "b", "alignment": "c"}


def aligned(pairs: list[tuple[str, str]], links: str = "0-0 0?1") -> list[dict[str, str]]:
    return [{"a": a, "b": b, "c": links} for a, b in pairs]


def test_alignments_stay_with_their_pairs(tmp_path: Path) -> None:
    held_out = [
        {"a": "", "b": "one", "c": "9-9"},
        *aligned([("one two", "two one")]),
        *aligned([("ten", "ten")], "0-0"),
    ]
    data = opened(tmp_path, train=aligned(many()), held_out=held_out, columns=ALIGNED)
    assert data.texts("validation") == [("one two", "two one"), ("ten", "ten")]
    assert data.gold("validation") == ["0-0 0?1", "0-0"]
    assert data.gold("test") == ["0-0", "0-0 0?1"]
    assert opened(tmp_path).gold("validation") is None


@pytest.mark.parametrize(
    ("links", "message"),
    [
        ("0-0 1:1", 'alignment=c, and "1:1" is no link'),
        ("0-0 0-2", "0-2 leads out of its 2 source and 2 target words"),
        ("2?0", "leads out of"),
    ],
)
def test_an_alignment_that_is_none_is_named(tmp_path: Path, links: str, message: str) -> None:
    held_out = [*aligned([("one two", "two one")]), *aligned([("one two", "two one")], links)]
    with pytest.raises(UserError, match=r"row 1 of validation has data\.columns\.alignment") as raised:
        opened(tmp_path, train=aligned(many()), held_out=held_out, columns=ALIGNED)
    assert message in str(raised.value)


# Examples to look at


def test_probes_fit_and_say_what_is_where(tmp_path: Path) -> None:
    data = opened(tmp_path, held_out=many(40))
    probes = data.probes(3, 8)
    assert [probe.example for probe in probes] == [probe.example for probe in data.probes(3, 8)]
    assert len({probe.example for probe in probes}) == 3
    for probe in probes:
        (row,) = probe.batch.rows.tolist()
        assert probe.example == f"validation pair {row}"
        assert max(probe.batch.source.shape[1], probe.batch.target.shape[1]) <= 8
        source, target = data.texts("validation")[row]
        assert len(words(source)) >= 4
        assert probe.labels["source"] == [*data.tokenizer.labels(data.tokenizer.encode(source)), "</s>"]
        written = data.tokenizer.labels(data.tokenizer.encode(target))
        assert (probe.labels["target"], probe.labels["output"]) == (["<s>", *written], [*written, "</s>"])
        assert probe.words is not None
        for stream, labels in probe.labels.items():
            assert len(labels) == len(probe.words[stream])
            assert [place == -1 for place in probe.words[stream]] == [label in ("<s>", "</s>") for label in labels]


def test_probes_with_a_known_alignment_come_first(tmp_path: Path) -> None:
    held_out = [*aligned(many(30), ""), *aligned([("one two three four", "four three two one")])]
    data = opened(tmp_path, train=aligned(many()), held_out=held_out, columns=ALIGNED)
    assert [probe.example for probe in data.probes(2, 30)] == ["validation pair 30"]


def test_where_no_pair_fits_the_shortest_are_taken(tmp_path: Path) -> None:
    data = opened(tmp_path, held_out=[("one two three", "three"), ("one", "one two"), ("one " * 9, "one")])
    assert [probe.example for probe in data.probes(2, 2)] == ["validation pair 1", "validation pair 0"]


def test_a_persons_pair_by_hand(tmp_path: Path) -> None:
    data = opened(tmp_path, train=[("Je t'aime !", "I love you.")] * 9)
    probe = data.pair("aime  !", "I you")
    assert probe.example == "aime !"
    assert probe.labels["source"] == [*data.tokenizer.labels(data.tokenizer.encode("aime !")), "</s>"]
    assert (probe.labels["target"], probe.labels["output"]) == (["<s>", "▁I", "▁you"], ["▁I", "▁you", "</s>"])
    assert probe.words is not None
    assert (probe.words["target"], probe.words["output"]) == ([-1, 0, 1], [0, 1, -1])
    assert probe.words["source"][-2:] == [1, -1]
    unanswered = data.pair("aime !", None)
    assert (unanswered.labels["target"], unanswered.batch.expected.tolist()) == (["<s>"], [[PAD_ID]])


def test_a_persons_sentences(tmp_path: Path) -> None:
    data = opened(tmp_path)
    batch = data.batch_of(["one two three", "", "ten"], None)
    assert [data.tokenizer.decode(row) for row in batch.source.tolist()] == ["one two three", "", "ten"]
    assert batch.source[1].tolist()[:2] == [END_ID, PAD_ID]
    assert batch.target.tolist() == [[START_ID]] * 3
    assert batch.expected.tolist() == [[PAD_ID]] * 3
    assert batch.seen == 0
    both = data.batch_of(["one", "ten"], ["two", ""])
    assert [data.tokenizer.decode(row) for row in both.expected.tolist()] == ["two", ""]
    assert data.batch_of(["one " * 39], None).source.shape == (1, 40)
    with pytest.raises(UserError, match=r'40 tokens, and this model takes 39 at most: split .* "one one'):
        data.batch_of(["ten", "one " * 40], None)


def test_a_run_folder_is_enough_to_read_and_write(tmp_path: Path) -> None:
    data = opened(tmp_path / "data", held_out=[*HELD_OUT, ("one " * 60, "one")])
    run = tmp_path / "run"
    run.mkdir()
    data.save(run)
    restored = data_on("nowhere")
    restored.restore(run)
    assert restored.sizes == data.sizes == {"vocab_size": data.tokenizer.size, "positions": 61}
    before, after = (each.batch_of(["six seven"], ["one."]) for each in (data, restored))
    assert torch.equal(before.source, after.source)
    assert torch.equal(before.expected, after.expected)
    (run / "translation.json").write_text("{}")
    with pytest.raises(UserError, match=r"translation\.json cannot be read .* damaged"):
        restored.restore(run)


# Bad input


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.columns\.target=de: no such column; there are: a, b"):
        opened(tmp_path, columns={"source": "a", "target": "de"})


@pytest.mark.parametrize("columns", [{"source": "a"}, {"source": "a", "target": "b", "text": "a"}, {}])
def test_columns_are_source_and_target(columns: dict[str, str]) -> None:
    with pytest.raises(UserError, match=r"data\.columns must name source and target"):
        data_on("nowhere", columns=columns)


@pytest.mark.parametrize("value", [["one"], {"en": "one"}])
def test_a_column_that_is_not_text_is_named_with_its_row(tmp_path: Path, value: object) -> None:
    held_out = [{"a": "one", "b": None}, {"a": "one", "b": value}]
    train = [{"a": source, "b": value} for source, _ in many()]
    with pytest.raises(UserError, match=r"data\.columns\.target=b must be a column of text: row \d of .*\.jsonl has"):
        opened(tmp_path, train=train, held_out=held_out)


def test_numbers_and_truth_values_are_read_as_they_are_spelled(tmp_path: Path) -> None:
    lines = ["7", "1e5", "0.70", "-0", "true", "12345678901234567890"]
    (tmp_path / "train.jsonl").write_text("".join(f'{{"a": "one {n}", "b": {n}}}\n' for n in lines))
    data = data_on(str(tmp_path), splits={"train": "train", "validation": "train", "test": "train"})
    data.open()
    assert [target for _, target in data.texts("train")] == lines


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text("")
    with pytest.raises(UserError, match=r"data\.path"):
        data_on(str(tmp_path)).open()


def test_a_split_that_filtering_empties_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"the train split holds no pairs: 60 over-long were filtered, by data\.max_length"
    ):
        opened(tmp_path, train=[("one two three", "one two three four")] * 60, max_length=2)
    with pytest.raises(UserError, match="the validation split holds no pairs: 2 empty were filtered"):
        opened(tmp_path, held_out=[("", "one"), ("one", "")])


@pytest.mark.parametrize(
    ("setting", "value"),
    [("max_length", 1), ("max_length_ratio", 0.5), ("batch_tokens", 39), ("eval_batch_tokens", 39), ("workers", -1)],
)
def test_settings_out_of_range_are_named(setting: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"data\.{setting}={value}; it must be at least"):
        data_on("nowhere", **{setting: value})
