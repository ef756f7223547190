"""The main job, on real input, with a broker killed in the middle: `make demo`.

flights      the input: 336,776 rows, one message a row, keyed by carrier
tally        what was sent, acknowledged, delivered; what went wrong
traffic      produce and consume through the kill
spark        a Spark session that keeps to itself
pipelines    PySpark reads the topic, as a batch and as a stream, and is compared with pandas
chart        the rate over time as a picture
verdict      the figures, and whether all is well
__main__     one after the other, with progress
"""
