"""From a hub id, a folder or an embedded source to batches."""
