"""The result of a check, drawn: for people (text, Markdown, annotations) and for the tools of others."""
