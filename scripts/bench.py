"""`make bench`: see conf/bench.yaml."""

from triptych.command import command

if __name__ == "__main__":
    from triptych.bench import run

    command(run, "bench")
