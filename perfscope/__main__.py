"""The program `perfscope`, also as ``python -m perfscope``."""

import sys


def main() -> None:
    """Entry point. Everything else is imported inside, so that Ctrl-C while loading is no stack trace."""
    try:
        from perfscope.no_pandas import hide_pandas

        hide_pandas()
        from perfscope.cli.main import main as run
        from perfscope.cycle_collector import in_one_command

        in_one_command()
        run()
    except KeyboardInterrupt:
        sys.stderr.write("perfscope: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    main()
