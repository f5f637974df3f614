"""Lines for a terminal."""

from __future__ import annotations

import shlex

from perfscope.cli.formatting import command_lines


def test_a_long_command_can_be_pasted_from_its_lines() -> None:
    argv = ["perfscope", "bench", "run", "dp.ddp+topk(0.01)", "--model", "gpt2-124m", "--batch", "16"]
    argv += ["--input", "512", "--dtype", "bfloat16", "--activation-checkpointing", "--optimizer", "adamw"]
    lines = command_lines(shlex.join(argv), "   ")
    assert len(lines) > 1 and all(len(line) <= 80 for line in lines)
    assert shlex.split("\n".join(lines).replace("\\\n", " ")) == argv
    assert not any(line.rstrip(" \\").endswith(("--model", "--batch", "--input")) for line in lines)
