"""Kernels that another shape or layout of the tensors would make faster or unnecessary."""

from __future__ import annotations

import re

from perfscope.messages.advice import training_advice
from perfscope.messages.findings.facts import PartOfStep
from perfscope.messages.findings.texts import FindingFacts, FindingText, Subject, of_step
from perfscope.messages.lists import counted
from perfscope.units import format_count, format_ratio

_TEMPLATE = re.compile(r"<(\w+)>")  # of kernels that are instances of a template of one argument


class UnalignedProducts(FindingFacts, frozen=True, kw_only=True):
    products: PartOfStep
    layer_ratio: float  # of their time, in the layer with most of it
    num_layers: int  # that have such products
    multiple: int  # elements of an aligned load
    kernel: str  # with most of their time
    has_peak: bool  # what it saves is the difference from it; else at most all of their time

    def text(self, subject: Subject) -> FindingText:
        heading = "Unaligned matrix products"
        where = ""
        if subject.layer:
            where = f"; {format_ratio(self.layer_ratio, 0)} of their time is in layer {subject.layer}"
        of = f" of {counted(self.num_layers, 'layer')}" if self.num_layers else ""
        template = _TEMPLATE.search(self.kernel)
        saved = " The saving is the difference from the measured peak."
        if not self.has_peak:
            saved = " No peak was measured: the saving is less than all of their time, which is stated."
        return FindingText(
            f"{heading}: {of_step(self.products)} is spent in kernels that load fewer than {self.multiple} "
            f"elements at a time{where}.",
            f"A dimension{of} is no multiple of {self.multiple}, so that "
            f"the fast kernels cannot be used. Most of the time: {template[1] if template else self.kernel}."
            f"{saved}",
            "Pad the vocabulary, number of classes, width or sequence length to a multiple of "
            f"{self.multiple}, better of 64, and leave the padding out of the loss.",
            heading,
        )


class LayoutConversions(FindingFacts, frozen=True, kw_only=True):
    conversions: PartOfStep
    num_kernels: float  # per step
    framework: str

    def text(self, subject: Subject) -> FindingText:
        heading = "Layout conversions"
        return FindingText(
            f"{heading}: {of_step(self.conversions)} is spent converting tensors between NCHW and NHWC.",
            f"{format_count(round(self.num_kernels))} kernels per step convert inputs, weights and gradients "
            "of convolutions, which compute in NHWC.",
            training_advice(self.framework).channels_last,
            heading,
        )
