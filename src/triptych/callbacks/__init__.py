"""What hangs on Lightning's trainer: progress, maps, samples, tables, and analyses at a run's moments and its end.

In come a trainer and a task while they work; out come files in the run's folder, and pictures in dashboards.
"""
