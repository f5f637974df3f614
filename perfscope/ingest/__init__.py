"""Traces of any format into the tables of a run. Formats: `formats/registry.py`.

`run.ingest_run` reads the windows of a run, `importing.import_traces` makes a run of foreign traces.
Importing these modules loads neither numpy nor pyarrow; their functions do.
"""
