"""`make predict`: see conf/predict.yaml."""

from triptych.commands.cli import command

if __name__ == "__main__":
    from triptych.commands.predict import predict

    command(predict, "predict")
