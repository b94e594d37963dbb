"""`make compare`: runs side by side; see conf/compare.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.report.compare import compare

    command(compare, "compare")
