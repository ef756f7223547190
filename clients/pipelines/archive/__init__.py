"""The archive of a topic: a directory of Parquet files that hold its offsets without a gap.

manifest  which file holds which offsets; pure
store     the directory: one writer at a time, and a manifest that is replaced as a whole
write     a Spark task that writes files
read      a Spark task that reads files
run       one run of `daybook pipeline archive`
source    what the Spark source needs of an archive for `read=archive+live`
"""
