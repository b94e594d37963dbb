"""What a process runs that rank 0 has started: ``python -m triptych.commands.rank RANK SIZE PORT``; see `launch`."""

import sys
import traceback


def main() -> None:
    """Join the run whose folder rank 0 names on standard input."""
    from triptych.commands.train import join
    from triptych.distributed.launch import Joined
    from triptych.errors import UserError

    rank, size, port = map(int, sys.argv[1:])
    try:
        with Joined(rank, size, port) as world:
            join(world)
    except UserError as error:
        print(f"triptych: {error}", file=sys.stderr)
        sys.exit(2)
    except Exception:
        traceback.print_exc()  # rank 0 reads it; torch's own would put [rank1] before every line
        sys.exit(1)


if __name__ == "__main__":
    main()
