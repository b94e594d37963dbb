"""What training needs beside a loss: optimizers, schedules, averages of weights, checkpoints, split parameters.

In come modules and Lightning's trainer; out come factories that configurations name, and files of plain tensors.
"""
