"""`make explain`: see conf/explain.yaml."""

from triptych.command import command

if __name__ == "__main__":
    from triptych.explained import explain

    command(explain, "explain")
