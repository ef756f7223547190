"""A program on the public interface: 336,776 flights through a cluster that loses a broker.

Run it from the root of the repository with `make demo` or `python -m examples.flights`.

flights      the input: 336,776 rows, one message a row, keyed by carrier
tally        counts what was sent, acknowledged and delivered, and what went wrong
traffic      produces and consumes while a broker is killed
spark        a small and silent Spark session
carriers     a stream that writes totals by carrier to a second topic, exactly once
pipelines    reads the topic with PySpark, as a batch and as that stream, and compares with pandas
chart        draws the rate over time
verdict      the figures, and the list of what went wrong
__main__     runs one after the other, with progress
"""
