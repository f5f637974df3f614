"""What runs inside the training process. Standard library only, Python 3.8 and newer.

The training may run under another Python where perfscope is not installed, so the agent
(bootstrap/agent.py) loads this room by file path under the name `_perfscope.probes`. Imports
here are therefore relative, and reach nothing but this room and rundir/layout.py.

The promise of this room: training's output, exit code and numbers stay as they were.
"""
