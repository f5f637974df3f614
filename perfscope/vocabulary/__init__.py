"""Names that several packages share: enums, frozen rows and defaults. No code that does work, no sentences.

Standard library and Python 3.8: ranks may load it, too. `perfscope.messages` has the English for these names.
"""
