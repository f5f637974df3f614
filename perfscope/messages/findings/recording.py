"""What was recorded, and what was not."""

from __future__ import annotations

from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject
from perfscope.messages.lists import plural
from perfscope.messages.windows import no_window_cure
from perfscope.units import format_count, format_ns, format_ratio
from perfscope.vocabulary.causes import Cause

_MOST_RANKS = 8  # that are named


class NoSteps(FindingFacts, frozen=True, kw_only=True):
    num_ranks: int

    def text(self, subject: Subject) -> FindingText:
        detail = "No rank was attached."
        if self.num_ranks:
            were = "was" if self.num_ranks == 1 else "were"
            ranks = f"{format_count(self.num_ranks)} {plural('rank', self.num_ranks)}"
            detail = f"{ranks} {were} attached, without a step."
        return FindingText(
            "No step was recorded, so the training cannot be analyzed.",
            detail,
            "Check that the command trains; loops without an optimizer object can call perfscope.step() once "
            "per step.",
        )


class NotTraced(FindingFacts, frozen=True, kw_only=True):
    step_ns: float  # median step
    input_ratio: float | None  # None: input was not measured
    no_window: Cause | None
    framework: str

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            f"The median step takes {format_ns(self.step_ns)}; what bounds it is not known without a trace.",
            "Input was not measured."
            if self.input_ratio is None
            else f"Waiting for input is {format_ratio(self.input_ratio)} of it.",
            no_window_cure(self.no_window, self.framework)
            if self.no_window is not None
            else "See “Not collected”: no traced step can be used.",
        )


class NoWholeStep(FindingFacts, frozen=True, kw_only=True):
    """The files end early, and no step is left that they hold whole."""

    def text(self, subject: Subject) -> FindingText:
        return FindingText(
            "No step is whole in the trace: what bounds the step is not known.",
            "The events that are missing may be of any step, so the parts of a step cannot be known.",
            no_window_cure(Cause.FILE_ENDS_EARLY, ""),
        )


class NoDeviceEvents(FindingFacts, frozen=True, kw_only=True):
    step_ns: float | None  # median step; None: not known
    ends_early: bool  # a file does: its device events may be what is lost

    def text(self, subject: Subject) -> FindingText:
        step = "" if self.step_ns is None else f" The median step takes {format_ns(self.step_ns)}."
        action = (
            "Record the trace again: the file ends early, before the events of the device."
            if self.ends_early
            else "Record with the device among the profiler's activities (`ProfilerActivity.CUDA`, `XPU`), "
            "and check that the profiler was permitted to trace it."
        )
        return FindingText(
            "The traces have no device events: what bounds the step is not known.",
            f"The host launched work on a device: only the host's side of the job is in this report.{step}",
            action,
        )


class Overhead(FindingFacts, frozen=True, kw_only=True):
    ratio: float
    budget: float
    traced: bool

    def text(self, subject: Subject) -> FindingText:
        spread = "A short run has little time over which the cost of its start and first window is spread."
        untraced = (
            "No window was traced: a short run has little time over which the cost of its start is spread."
        )
        fewer = "Run longer, trace fewer steps (`--steps-per-window 1`), or none (`--no-trace`)."
        return FindingText(
            f"Profiling overhead was {format_ratio(self.ratio, 2)} of the run, "
            f"over the budget of {format_ratio(self.budget, 2)}.",
            spread if self.traced else untraced,
            fewer if self.traced else "Run longer.",
        )


class RanksMissing(FindingFacts, frozen=True, kw_only=True):
    num_ranks: int
    num_expected: int
    imported: bool
    unreadable: bool
    notes: tuple[str, ...]

    def text(self, subject: Subject) -> FindingText:
        count = f"{format_count(self.num_ranks)} of {format_count(self.num_expected)} ranks"
        cover = "Values over all ranks cover these only."
        if self.notes:
            detail = " ".join(self.notes)
        elif self.unreadable:
            detail = f"The record of the others is damaged: see “Not collected”. {cover}"
        else:
            detail = cover if self.imported else f"The run does not record why the others were not. {cover}"
        if self.imported:
            return FindingText(
                f"The traces of {count} were imported.", detail, "Import the other ranks' traces too."
            )
        seen = "can be shown" if self.unreadable else "were attached"
        return FindingText(f"{count} {seen}.", detail, "See the launcher's notes in run.json.")


class RanksKilled(FindingFacts, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    num_steps: int  # recorded by the rank with the fewest
    is_open: bool

    def text(self, subject: Subject) -> FindingText:
        named = ", ".join(map(str, self.ranks[:_MOST_RANKS])) + (
            ", ..." if len(self.ranks) > _MOST_RANKS else ""
        )
        why = (
            "still running, or perfscope was killed with them"
            if self.is_open
            else "killed, or ended by os._exit"
        )
        return FindingText(
            f"{plural('Rank', len(self.ranks))} {named} did not close "
            f"{'their' if len(self.ranks) > 1 else 'its'} files ({why}); steps are recorded up to number "
            f"{format_count(self.num_steps)}.",
            "Everything written before is in this report; a window being traced at that time is lost.",
            "Look at the exit code and the kernel log (out of memory?) of that rank.",
        )
