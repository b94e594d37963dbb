"""The commands: what each does, what it is called with, and where its function and its settings are."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One command of the command line.

    Attributes:
        name: What a person types after ``triptych``.
        summary: What it does, in one line.
        usage: What follows the name, in words of a help text.
        examples: Two command lines.
        function: The function that does it, as ``module:name``; imported only when it is to run.
        config: Its settings, ``conf/<config>.yaml``; None for a command that takes none.
        positional: The settings that words without a name fill, in this order.
        needed: How many of these there must be.
        many: Whether the last of them takes any number of words.
    """

    name: str
    summary: str
    usage: str
    examples: tuple[str, str]
    function: str
    config: str | None
    positional: tuple[str, ...] = ()
    needed: int = 0
    many: bool = False


COMMANDS = {
    command.name: command
    for command in (
        Command(
            "train",
            "Train a model, test it, and leave a run folder with maps and a report.",
            "task=TASK [OPTION=VALUE ...]",
            ("triptych train task=vit optimizer.lr=0.01", "triptych train task=charlm trainer.max_steps=200 seed=1"),
            "triptych.commands.train:train",
            "train",
        ),
        Command(
            "predict",
            "Answer with a trained model: continue a text, translate sentences, name what pictures show.",
            "RUN TEXT [OPTION=VALUE ...]",
            (
                'triptych predict runs/charlm/latest "The assert statement" length=200',
                "triptych predict runs/vit/latest photo.png maps=true",
            ),
            "triptych.commands.predict:predict",
            "predict",
            ("run", "input"),
            needed=2,
        ),
        Command(
            "explain",
            "Show what a trained model's maps say about its answers, and test it.",
            "RUN [TEXT] [OPTION=VALUE ...]",
            (
                "triptych explain runs/vit/latest photo.png",
                "triptych explain runs/charlm/latest split=test n=64",
            ),
            "triptych.commands.explain:explain",
            "explain",
            ("run", "input"),
            needed=1,
        ),
        Command(
            "evaluate",
            "Measure a run's checkpoint on its test data again.",
            "RUN [OPTION=VALUE ...]",
            ("triptych evaluate runs/charlm/latest", "triptych evaluate runs/charlm/latest checkpoint=last"),
            "triptych.commands.evaluate:evaluate",
            "evaluate",
            ("run",),
            needed=1,
        ),
        Command(
            "report",
            "Write a run's report.html again, from its folder alone.",
            "RUN",
            ("triptych report runs/charlm/latest", "triptych report runs/vit/20260101-120000-abcdef"),
            "triptych.commands.report:rebuild_report",
            "report",
            ("run",),
            needed=1,
        ),
        Command(
            "compare",
            "Put runs of one task side by side: what differs in their settings, and what came out.",
            "RUN RUN ... [OPTION=VALUE ...]",
            ("triptych compare runs/charlm/*", "triptych compare runs/sweeps/20260101-120000-abcdef sort=test/loss"),
            "triptych.report.compare:compare",
            "compare",
            ("runs",),
            needed=1,
            many=True,
        ),
        Command(
            "sweep",
            "Train many times with varied options, then compare: every combination of values, or a search.",
            "task=TASK [OPTION=VALUE,VALUE ...]",
            (
                "triptych sweep task=vit sweep=lr",
                "triptych sweep task=charlm optimizer.lr=1e-3,3e-3 seed=1,2",
            ),
            "triptych.commands.train:train",
            "train",
        ),
        Command(
            "bench",
            "Measure speed on this machine.",
            "[OPTION=VALUE ...]",
            ("triptych bench", "triptych bench bench=loop experiment=charlm_small"),
            "triptych.commands.bench:run",
            "bench",
        ),
        Command(
            "runs",
            "List the runs in a folder, the newest first.",
            "[FOLDER]",
            ("triptych runs", "triptych runs other_runs"),
            "triptych.commands.runs:show",
            None,
            ("runs",),
        ),
    )
}
