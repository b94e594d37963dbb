"""What is learned: for each task its loss, its metrics and its answers, as a LightningModule around a model.

In come batches; out come losses, metrics and answers to a person's input.
"""
