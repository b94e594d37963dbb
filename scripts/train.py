"""`make train`: see conf/train.yaml."""

from triptych.command import command

if __name__ == "__main__":
    from triptych.run import train

    command(train, "train")
