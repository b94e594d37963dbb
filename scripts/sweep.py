"""`make sweep`: see conf/train.yaml and conf/sweep/."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.train import train

    command(train, "train", sweep=True)
