"""LightningModules: loss, metrics and optimizer of each task."""
