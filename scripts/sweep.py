"""`make sweep`: see conf/train.yaml and conf/sweep/."""

from triptych.command import command

if __name__ == "__main__":
    from triptych.run import train

    command(train, "train", sweep=True)
