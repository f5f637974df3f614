"""Traces of other frameworks than torch: what each format tells, as spans of one kind."""
