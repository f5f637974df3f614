"""The result of a check, drawn: for reading (text, Markdown, annotations) and for the tools of others."""
