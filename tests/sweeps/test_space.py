"""What a sweep varies: read from Hydra's words, every impossible axis refused, numbers drawn from inside it."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from triptych.errors import UserError
from triptych.sweeps.search import distribution, word
from triptych.sweeps.space import Space, read


def space(*arguments: str, **configured: str) -> Space:
    dotted = {name.replace("__", "."): words for name, words in configured.items()}
    return read(dotted, arguments, OverridesParser.create())


def test_the_command_line_wins_over_the_file() -> None:
    found = space("task=vit", "optimizer.lr=1,2", optimizer__lr="3,4", seed="5,6")
    assert found.to_json() == {"seed": "5,6", "optimizer.lr": "1,2"}
    assert found.fixed == ("task=vit",)


def test_one_value_on_the_command_line_takes_an_axis_out() -> None:
    found = space("optimizer.lr=0.1", optimizer__lr="interval(0, 1)", seed="1,2")
    assert set(found.axes) == {"seed"}
    assert found.fixed == ("optimizer.lr=0.1",)


def test_a_grid_is_every_combination_the_last_axis_turning_fastest() -> None:
    found = space("a=1,2", "b=x,y,z").combinations()
    assert found == [[f"a={a}", f"b={b}"] for a in (1, 2) for b in "xyz"]


def test_the_same_space_typed_in_two_ways_is_the_same() -> None:
    assert space("a=1e-3,3e-3", "b=tag(log,interval(1e-3,1))").to_json() == (
        space("a=choice(0.001, 0.003)", b="tag(log, interval(0.001, 1.0))").to_json()
    )


def test_every_value_is_probed_and_no_more_combinations_than_the_longest_axis() -> None:
    probes = space("a=1,2", "b=x,y,z", "c=interval(0.5,1)").probes()
    assert probes == [["a=1", "b=x", "c=0.5"], ["a=2", "b=y", "c=0.5"], ["a=2", "b=z", "c=0.5"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["task=vit"], "the sweep has nothing to vary"),
        (["a=interval(2,1)"], "its low end, 2, must be below its high end"),
        (["a=interval(1,1)"], "must be below its high end"),
        (["a=range(5,1)"], "there is no value in it"),
        (["a=tag(log,interval(0,1))"], "must begin above 0"),
        (["a=tag(lgo,interval(1,2))"], "tag lgo is not known"),
        (["a=choice()"], "empty choice"),
        (["task=vit,charlm"], "task= cannot be swept"),
        (["watch.metric=val/loss,val/accuracy"], "watch.metric= cannot be swept"),
        (["hydra.job.num=1,2"], "hydra.job.num= cannot be swept"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_sentence(words: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said.replace("(", r"\(")) as refused:
        space(*words)
    assert "\n" not in str(refused.value)


def test_an_interval_in_a_grid_points_at_the_search() -> None:
    with pytest.raises(UserError, match="sweep=search"):
        space("a=interval(1,2)").combinations()


def test_ordered_numbers_are_numbers_and_the_rest_choices() -> None:
    kinds = {
        name: distribution(axis)
        for name, axis in space(
            "a=interval(1,8)", "b=int(interval(1,8))", "c=range(2,9,2)", "d=1,2", "e=tag(log,interval(1,10))"
        ).axes.items()
    }
    assert [type(kind).__name__.removesuffix("Distribution") for kind in kinds.values()] == [
        "Float",
        "Int",
        "Int",
        "Categorical",
        "Float",
    ]
    assert (kinds["c"].low, kinds["c"].high, kinds["c"].step) == (2, 8, 2)
    assert kinds["d"].choices == ("1", "2")
    assert [kind.log for kind in (kinds["a"], kinds["e"])] == [False, True]


@given(st.floats(1e-6, 1e6))
def test_a_number_on_the_command_line_is_the_one_drawn_to_four_digits(value: float) -> None:
    assert abs(float(word(value)) - value) <= 5.01e-4 * value
