"""The log of PySpark about wrong expressions."""

import logging

import pytest
from pyspark.logger import PySparkLogger

from daybook.clients.pipelines.quiet import without_java_stacks


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.mark.parametrize("name", ["SQLQueryContextLogger", "DataFrameQueryContextLogger"])
def test_the_java_stack_of_a_wrong_expression_is_not_logged_in_the_block(name: str) -> None:
    logger = PySparkLogger.getLogger(name)
    handler = Kept()
    logger.addHandler(handler)
    try:
        with without_java_stacks():
            logger.exception("there is no such column", errorClass="UNRESOLVED_COLUMN")
        assert not handler.records
        logger.exception("there is no such column", errorClass="UNRESOLVED_COLUMN")
        assert len(handler.records) == 1
    finally:
        logger.removeHandler(handler)
