"""Pictures and pages to every configured logger. One that fails never ends a training.

In come a picture or page, a title and a step; out it goes to TensorBoard, W&B and whatever else listens.
"""
