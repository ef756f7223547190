"""The archive of a topic: a directory of Parquet files that hold its offsets without a gap.

manifest     which file holds which offsets; pure
files        the files of a directory: every step at which a write may stop
store        one writer at a time, and a manifest that is replaced as a whole
belongs      the check that an archive and a topic belong together; pure
parquet      the label of a file, and how files are opened
checked      the one way in which rows are read: a file that differs from its manifest is an error
write        a Spark task that writes files
read         a Spark task that reads files
run          one run of `daybook pipeline archive`
compact      small files become larger ones
replay_plan  which part of an archive a replay writes next; pure
replay_task  a Spark task that stages the messages of a file
replay       one run of `daybook pipeline replay`
times        offsets by publish time
archived     an archive in front of a topic
source       what the Spark source needs of an archive for `read=archive+live`
"""
