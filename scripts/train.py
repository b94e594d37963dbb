"""`make train`: see conf/train.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.train import train

    command(train, "train")
