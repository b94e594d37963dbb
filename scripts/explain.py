"""`make explain`: see conf/explain.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.explain import explain

    command(explain, "explain")
