"""The parts of a report, one function each: results in, a Section out."""
