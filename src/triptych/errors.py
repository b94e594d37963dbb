"""The one exception for a user's mistake: its text is the sentence the user reads, and no traceback is shown."""


class Requeued(SystemExit):
    """The run has saved itself and put its job back into the queue: it goes on when that starts again."""


class UserError(Exception):
    """Something the user can put right. The message names the setting and what would work."""
