"""`make bench`: see conf/bench.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.bench import run

    command(run, "bench")
