"""`make report`: rebuild a run's report.html; see conf/report.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.report import rebuild_report

    command(rebuild_report, "report")
