"""``python -m triptych.commands``: the command line where there is no ``triptych`` on the path, under torchrun say."""

from triptych.commands.cli import main

if __name__ == "__main__":  # a process that a launcher spawns imports this file too
    main()
