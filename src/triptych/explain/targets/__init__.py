"""What is explained: which output of which examples, and the input units that can be taken away.

`subject` holds the contract of examples that are asked about one output each; `registry` finds the target of a task by
the task's class; `images`, `texts` and `pairs` are the targets of our three tasks. In come a task, its data and probes;
out go subjects, which methods score and tests take apart.
"""
