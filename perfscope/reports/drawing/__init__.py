"""Charts: laid out once (`lay_out`), drawn on the page and on paper by one writer of SVG."""

from __future__ import annotations

# Importing a module of layouts registers them.
from perfscope.reports.drawing import bars as bars
from perfscope.reports.drawing import counters as counters
from perfscope.reports.drawing import curves as curves
from perfscope.reports.drawing import heatmap as heatmap
from perfscope.reports.drawing import histogram as histogram
from perfscope.reports.drawing import history as history
from perfscope.reports.drawing import icicle as icicle
from perfscope.reports.drawing import lanes as lanes
from perfscope.reports.drawing import roofline as roofline
from perfscope.reports.drawing import series as series
from perfscope.reports.drawing.picture import Picture as Picture
from perfscope.reports.drawing.picture import lay_out as lay_out
