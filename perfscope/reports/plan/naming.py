"""What a way to train is called in one line."""

from __future__ import annotations

from perfscope.analysis.plan.records import Candidate

_DTYPES = {"bfloat16": "bf16", "float16": "fp16"}
_SCHEDULES = {"interleaved": "il", "zero-bubble": "zb"}


def label(option: Candidate) -> str:
    """What is done, in the words of `bench run`: mesh, and what else is not the default."""
    terms = ["serial" if option.scheme == "serial" else option.mesh]
    if option.microbatches > 1:
        terms.append(f"m={option.microbatches}")
    if option.schedule not in ("", "1f1b"):
        terms.append(_SCHEDULES.get(option.schedule, option.schedule))
    if option.bucket_mb is not None:
        terms.append(f"bucket={option.bucket_mb:g}M")
    if option.checkpointing:
        terms.append("ckpt")
    if option.dtype != "float32":
        terms.append(_DTYPES.get(option.dtype, option.dtype))
    return " ".join(terms)
