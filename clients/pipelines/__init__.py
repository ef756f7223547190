"""Whole jobs around topics: `daybook pipeline`.

archive    topics in Parquet files, with a manifest that says which offsets they hold
spec       a pipeline as a TOML file describes it, checked; and the pipeline that copies a topic
spec_file  the line and key of an error in that file
session    the Spark session of a command
steps      the frames of a pipeline: parse, filter, deduplicate, window, columns, dead letters
quiet      PySpark's own log of errors, which a command leaves out
run        the streaming queries of a pipeline, which end cleanly
report     the progress of queries, and the final table
history    the rate over time
picture    the same as a picture
"""
