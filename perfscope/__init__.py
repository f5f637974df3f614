"""perfscope: where a distributed training step goes, and why it does not scale.

Importing this package is cheap: neither torch nor numpy, pyarrow or matplotlib is loaded
until a command needs it (tests/unit/test_import_cost.py).
"""

__version__ = "0.1.0"
__all__ = ["__version__"]
