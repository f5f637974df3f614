"""``python -m perfscope`` is the same program as ``perfscope``."""

from perfscope.cli.main import main

if __name__ == "__main__":
    main()
