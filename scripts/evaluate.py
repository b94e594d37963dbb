"""`make evaluate`: see conf/evaluate.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.evaluate import evaluate

    command(evaluate, "evaluate")
